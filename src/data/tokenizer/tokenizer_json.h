// Hugging Face tokenizer.json, in and out.
#pragma once
#include <string>
#include <string_view>

#include "base/json.h"
#include "data/tokenizer/bpe.h"

namespace cairn::data {

inline constexpr size_t kTokenizerFileBytes = 64 << 20;

// The text of a tokenizer.json that the `tokenizers` library opens. For BPEs that Cairn makes itself: a tokenizer read from a file keeps
// that file's text.
std::string write_tokenizer_json(const Bpe& bpe);

// Reads byte-level BPE (GPT-2, Llama 3, Qwen) and BPE of characters (Llama 2, Mistral). Refuses whatever would give other ids than the
// `tokenizers` library, with `name` (a path) and the reason. Settings of batches (truncation, padding) are ignored.
Bpe read_tokenizer_json(std::string_view json, const std::string& name);
Bpe bpe_of_json(const base::Json& root, const std::string& name);

}  // namespace cairn::data
