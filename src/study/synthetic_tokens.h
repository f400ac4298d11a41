#pragma once
#include <cstdint>
#include <string>

namespace cairn::study {

// Synthetic tokens about as hard to predict as real text, for machines without data: about half follow from the token before, the others
// are drawn by word-like frequencies.
struct SyntheticTokens {
  std::string tokens;     // a token shard of llm.c
  std::string tokenizer;  // a tokenizer.json with the requested vocabulary size; nothing is encoded with it
};

// Writes the files into a folder. The tokens are always the same.
SyntheticTokens write_synthetic_tokens(int64_t count, int64_t vocab, const std::string& folder);

}  // namespace cairn::study
