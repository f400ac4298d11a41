#include "data/tokenizer/piece_text.h"

#include <optional>

#include <fmt/format.h>

#include "data/tokenizer/byte_to_unicode.h"
#include "data/tokenizer/normalizer.h"

namespace cairn::data {
namespace {

std::optional<int> byte_of(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return std::nullopt;
  int value = 0;
  for (const char c : piece.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9', letter = (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f');
    if (!digit && !letter) return std::nullopt;
    value = value * 16 + (digit ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return value;
}

// The text of a piece. Added tokens go through the byte-to-unicode table too, where all their characters are in it.
std::string text_of(const std::string& piece, const Decoding& decoding, bool added) {
  if (decoding.byte_level) return added ? unicode_to_bytes(piece).value_or(piece) : piece;
  std::string scratch;
  std::string text(apply_normalizers(piece, decoding.replaces, scratch));
  if (decoding.byte_pieces)
    if (const std::optional<int> byte = byte_of(text)) return std::string(1, static_cast<char>(*byte));
  return text;
}

}  // namespace

std::string byte_piece(int byte) { return fmt::format("<0x{:02X}>", byte); }

PieceTexts::PieceTexts(const Bpe& bpe) : decoding_(bpe.decoding) {
  std::vector<bool> added(bpe.pieces.size());
  for (const AddedToken& token : bpe.added) added[token.id] = true;
  for (size_t id = 0; id < bpe.pieces.size(); ++id) texts_.push_back(text_of(bpe.pieces[id], decoding_, added[id]));
  if (decoding_.drop_in_first.empty()) return;
  Decoding first = decoding_;
  first.replaces = {{NormalizerStep::Kind::replace, decoding_.drop_in_first, ""}};
  for (const std::string& piece : bpe.pieces) first_texts_.push_back(text_of(piece, first, false));
}

std::string PieceTexts::join(std::span<const int32_t> ids) const {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) text += i == 0 && !first_texts_.empty() ? first_texts_[ids[i]] : texts_[ids[i]];
  if (decoding_.strip.empty()) return text;
  size_t begin = 0, end = text.size();
  for (int64_t i = 0; i < decoding_.strip_first && std::string_view(text).substr(begin, end - begin).starts_with(decoding_.strip); ++i)
    begin += decoding_.strip.size();
  for (int64_t i = 0; i < decoding_.strip_last && std::string_view(text).substr(begin, end - begin).ends_with(decoding_.strip); ++i)
    end -= decoding_.strip.size();
  return text.substr(begin, end - begin);
}

}  // namespace cairn::data
