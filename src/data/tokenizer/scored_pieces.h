// Vocabularies whose pieces carry scores instead of a list of merges, as SentencePiece and llama2.c have them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/bpe.h"

namespace cairn::data {

struct ScoredPiece {
  enum class Kind { normal, unknown, control, user_defined, unused, byte };
  std::string text;  // with the space mark U+2581
  float score = 0;
  Kind kind = Kind::normal;
};

// The byte-pair encoding of characters that joins pieces in falling order of score, in the form that Llama 2 has as a tokenizer.json:
// a space in front of the text where `prefix`, bytes where a character has no piece, <s> put before the text where there is one.
Bpe bpe_of_scored_pieces(const std::vector<ScoredPiece>& pieces, bool prefix);

}  // namespace cairn::data
