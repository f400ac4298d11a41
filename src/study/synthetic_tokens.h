#pragma once
#include <cstdint>
#include <string>

namespace cairn::study {

// Text as hard as real text, where there is none: tokens of which about half follow from the one before and the others are as frequent as
// words are, so that there is something to learn, and never all of it.
struct SyntheticTokens {
  std::string tokens;     // a token shard of llm.c
  std::string tokenizer;  // tokenizer.json of as many tokens as were asked for; nobody encodes with it
};

// Writes them into a folder, always the same ones.
SyntheticTokens write_synthetic_tokens(int64_t count, int64_t vocab, const std::string& folder);

}  // namespace cairn::study
