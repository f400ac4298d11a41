// The tokenizer.json of a SentencePiece model.
#pragma once
#include <string>

#include "data/tokenizer/sentencepiece_model.h"

namespace cairn::data {

// A BPE model becomes what Llama 2 has as a tokenizer.json, a unigram model what Hugging Face's converter makes of one.
std::string sentencepiece_json(const SentencepieceModel& model);

}  // namespace cairn::data
