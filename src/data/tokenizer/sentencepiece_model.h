// Reads a SentencePiece model file: its pieces, their scores, and how it treats text.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/scored_pieces.h"

namespace cairn::data {

struct SentencepieceModel {
  enum class Kind { unigram = 1, bpe = 2, word = 3, character = 4 };
  Kind kind = Kind::unigram;
  std::vector<ScoredPiece> pieces;
  std::string normalizer;     // its name: "identity", "nmt_nfkc"
  std::string character_map;  // its compiled rules (precompiled_charsmap); empty: none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
};

// `name` (a path) appears in errors.
SentencepieceModel read_sentencepiece_model(std::string_view bytes, const std::string& name);

}  // namespace cairn::data
