// Opens a tokenizer from a file or a model's folder, whatever its format.
#pragma once
#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace cairn::data {

// A Hugging Face tokenizer.json; a SentencePiece tokenizer.model; GPT-2's two files (one of vocab.json and merges.txt, or of
// encoder.json and vocab.bpe, the other beside it); llama2.c's tokenizer.bin; or a folder that holds one of these.
// The files beside it declare which tokens begin and end a text (declared_tokens.h).
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

}  // namespace cairn::data
