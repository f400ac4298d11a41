// The text of each id of a BPE: the decoder, applied once to every piece.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/bpe.h"

namespace cairn::data {

// What SentencePiece writes for a space: U+2581 (Metaspace in tokenizer.json).
inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

// The name of the piece that stands for one byte: <0x0A>.
std::string byte_piece(int byte);

class PieceTexts {
 public:
  explicit PieceTexts(const Bpe& bpe);

  const std::string& operator[](int32_t id) const { return texts_[id]; }
  // The text of a sequence of ids, stripped at both ends as the decoder says.
  std::string join(std::span<const int32_t> ids) const;

 private:
  Decoding decoding_;
  std::vector<std::string> texts_;
  std::vector<std::string> first_texts_;  // of ids at the beginning of a text; empty: the same as texts_
};

}  // namespace cairn::data
