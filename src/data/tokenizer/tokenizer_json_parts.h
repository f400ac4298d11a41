// The parts of a tokenizer.json around its model: normalizer, pre_tokenizer, post_processor and decoder.
#pragma once
#include <string>

#include "base/json.h"
#include "data/tokenizer/bpe.h"

namespace cairn::data {

// Fills normalizers, pre_tokenizers, bytes, begin, end and decoding. Refuses a part that is not supported, with `name` (a path) and the
// part's own name.
void read_tokenizer_parts(const base::Json& root, const std::string& name, Bpe& into);

}  // namespace cairn::data
