// The tokenizer.json of a SentencePiece model.
#pragma once
#include <string>

#include "data/tokenizer/sentencepiece_model.h"

namespace cairn::data {

// A BPE model becomes a tokenizer.json like Llama 2's; a unigram model becomes what Hugging Face's converter writes.
std::string sentencepiece_json(const SentencepieceModel& model);

}  // namespace cairn::data
