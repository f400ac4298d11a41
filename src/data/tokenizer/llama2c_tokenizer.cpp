#include "data/tokenizer/llama2c_tokenizer.h"

#include <cmath>
#include <cstring>
#include <set>

#include "base/check.h"
#include "data/tokenizer/piece_text.h"
#include "data/tokenizer/scored_pieces.h"

namespace cairn::data {
namespace {

constexpr size_t kLlama2cPiecesMax = 1 << 20, kLlama2cFileBytes = 16 << 20;
constexpr int32_t kLlama2cPieceBytes = 256;  // Llama 2's longest has 27

// Reads little-endian numbers and texts from the front of a file.
class LittleEndianReader {
 public:
  LittleEndianReader(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}
  bool empty() const { return at_ == bytes_.size(); }

  template <typename T>
  T number(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }
  std::string_view take(size_t count, const char* what) {
    if (count > bytes_.size() - at_) base::fail_input("{}: ends within {}, at byte {}: not a tokenizer of llama2.c", name_, what, at_);
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }

 private:
  std::string_view bytes_;
  const std::string& name_;
  size_t at_ = 0;
};

// llama2.c writes a space for the mark, and line breaks around the names of the first three.
ScoredPiece piece_of(size_t id, std::string_view written, float score) {
  if (id == 0) return {"<unk>", 0, ScoredPiece::Kind::unknown};
  if (id == 1) return {"<s>", 0, ScoredPiece::Kind::control};
  if (id == 2) return {"</s>", 0, ScoredPiece::Kind::control};
  if (id < 3 + 256) return {byte_piece(static_cast<int>(id) - 3), 0, ScoredPiece::Kind::byte};
  std::string text;
  for (const char c : written) {
    if (c == ' ')
      text += kSpaceMark;
    else
      text += c;
  }
  return {std::move(text), score, ScoredPiece::Kind::normal};
}

}  // namespace

Bpe read_llama2c_tokenizer(std::string_view bytes, const std::string& name) {
  if (bytes.size() > kLlama2cFileBytes)
    base::fail_input("{}: {} bytes, and a tokenizer of llama2.c has at most {}", name, bytes.size(), kLlama2cFileBytes);
  LittleEndianReader file(bytes, name);
  const int32_t longest = file.number<int32_t>("the header");
  if (longest < 1 || longest > kLlama2cPieceBytes)
    base::fail_input("{}: says that its longest piece has {} bytes, must be 1 to {}: not a tokenizer of llama2.c", name, longest,
                     kLlama2cPieceBytes);
  std::vector<ScoredPiece> pieces;
  std::set<std::string> seen;
  while (!file.empty()) {
    const size_t id = pieces.size();
    if (id == kLlama2cPiecesMax) base::fail_input("{}: more than {} pieces", name, kLlama2cPiecesMax);
    const auto score = file.number<float>("a score");
    const auto length = file.number<int32_t>("a length");
    if (!std::isfinite(score)) base::fail_input("{}: piece {} has the score {}", name, id, score);
    if (length < 1 || length > longest) base::fail_input("{}: piece {} has {} bytes, must be 1 to {}", name, id, length, longest);
    const std::string_view written = file.take(static_cast<size_t>(length), "a piece");
    if (id >= 3 && id < 3 + 256 && written != byte_piece(static_cast<int>(id) - 3))
      base::fail_input("{}: piece {} is \"{}\", and should stand for a byte: {}", name, id, written.substr(0, 80),
                       byte_piece(static_cast<int>(id) - 3));
    pieces.push_back(piece_of(id, written, score));
    if (!seen.insert(pieces.back().text).second) base::fail_input("{}: piece {}, \"{}\", stands twice", name, id, pieces.back().text);
  }
  if (pieces.size() < 3 + 256)
    base::fail_input("{}: {} pieces, and the first 259 are fixed: not a tokenizer of llama2.c", name, pieces.size());
  return bpe_of_scored_pieces(pieces, /*prefix=*/true);
}

}  // namespace cairn::data
