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

// The BPE of characters that merges pieces in falling order of score, as Llama 2's tokenizer.json has it: `prefix` prepends a space to the
// text, characters without a piece fall back to bytes, and <s> is prepended where the vocabulary has it.
Bpe bpe_of_scored_pieces(const std::vector<ScoredPiece>& pieces, bool prefix);

}  // namespace cairn::data
