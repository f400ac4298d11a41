// The tokenizer file of llama2.c (tokenizer.bin, tok512.bin).
#pragma once
#include <string>
#include <string_view>

#include "data/tokenizer/bpe.h"

namespace cairn::data {

// Reads such a file as a BPE; write_tokenizer_json turns it into a tokenizer.json that LlamaTokenizerFast opens. The file does not state
// its number of pieces, so all of its bytes are read. `name` (a path) appears in errors.
Bpe read_llama2c_tokenizer(std::string_view bytes, const std::string& name);

}  // namespace cairn::data
