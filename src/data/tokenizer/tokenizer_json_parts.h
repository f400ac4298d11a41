// The parts of a tokenizer.json around its model: normalizer, pre_tokenizer, post_processor and decoder.
#pragma once
#include <string>

#include "base/json.h"
#include "data/tokenizer/bpe.h"

namespace cairn::data {

// Fills rewrites, cuts, bytes, begin, end and decoding. A part that is not supported is refused by `name` (a path) and its own name.
void read_tokenizer_parts(const base::Json& root, const std::string& name, Bpe& into);

}  // namespace cairn::data
