// Tokenizers of SentencePiece model files (tokenizer.model), run by the SentencePiece library.
#pragma once
#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace cairn::data {

// Whether Cairn was built with the library.
bool has_sentencepiece();

// `bytes` is the file, `name` (a path) appears in errors. `add_bos`: the model's bos goes before a text (EncodeOptions::add_special), as
// in `transformers` unless add_bos_token is false. Refused where Cairn was built without the library.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string bytes, const std::string& name, bool add_bos = true);

}  // namespace cairn::data
