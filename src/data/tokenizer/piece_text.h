// What each id of a byte-pair encoding stands for in text.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/bpe.h"

namespace cairn::data {

// What SentencePiece and its relatives write for a space: U+2581.
inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

// The name of the piece that stands for one byte: <0x0A>.
std::string byte_piece(int byte);

class PieceTexts {
 public:
  explicit PieceTexts(const Bpe& bpe);

  const std::string& operator[](int32_t id) const { return texts_[id]; }
  // The text of a row of ids, with what belongs to its beginning and end taken off.
  std::string join(std::span<const int32_t> ids) const;

 private:
  Decoding decoding_;
  std::vector<std::string> texts_;
  std::vector<std::string> first_texts_;  // of ids at the beginning; empty: no different
};

}  // namespace cairn::data
