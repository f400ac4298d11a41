// Hugging Face tokenizer.json, in and out.
#pragma once
#include <string>
#include <string_view>

#include "data/bpe.h"

namespace cairn::data {

// Byte-level BPE with the ByteLevel pre-tokenizer and decoder; opened as it is by the `tokenizers` library.
std::string write_tokenizer_json(const Bpe& bpe);

// Reads what write_tokenizer_json writes, and GPT-2's own. Anything else is refused, with `name` (a path) and the reason.
Bpe read_tokenizer_json(std::string_view json, const std::string& name);

}  // namespace cairn::data
