// The tokenizer file of llama2.c (tokenizer.bin, tok512.bin).
#pragma once
#include <string>
#include <string_view>

#include "data/tokenizer/bpe.h"

namespace cairn::data {

// The pieces of such a file as a BPE; write_tokenizer_json makes a tokenizer.json of it that LlamaTokenizerFast opens. The file does
// not say how many pieces it has: all bytes of it are read. `name` (a path) stands in errors.
Bpe read_llama2c_tokenizer(std::string_view bytes, const std::string& name);

}  // namespace cairn::data
