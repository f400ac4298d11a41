// Hugging Face tokenizer.json, in and out.
#pragma once
#include <string>
#include <string_view>

#include "base/json.h"
#include "data/tokenizer/bpe.h"

namespace cairn::data {

inline constexpr size_t kTokenizerFileBytes = 64 << 20;

// Opened as it is by the `tokenizers` library. For what Cairn makes itself: a tokenizer that was read keeps its own text.
std::string write_tokenizer_json(const Bpe& bpe);

// Byte-level BPE (GPT-2, Llama 3, Qwen) and BPE of characters (Llama 2, Mistral). Whatever would give other ids than in the
// `tokenizers` library is refused, with `name` (a path) and the reason. Settings of batches (truncation, padding) do not count.
Bpe read_tokenizer_json(std::string_view json, const std::string& name);
Bpe bpe_of_json(const base::Json& root, const std::string& name);

}  // namespace cairn::data
