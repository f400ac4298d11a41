// Tokenizers of SentencePiece model files (tokenizer.model), run by the SentencePiece library.
#pragma once
#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace cairn::data {

// Whether the library was there when Cairn was built.
bool has_sentencepiece();

// `bytes` is the file, `name` (a path) stands in errors. Refused where Cairn was built without the library.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string bytes, const std::string& name);

}  // namespace cairn::data
