#include "data/tokenizer/sentencepiece_model.h"

#include <cmath>
#include <cstring>

#include "base/check.h"

namespace cairn::data {
namespace {

constexpr size_t kPiecesMax = 1 << 20;
constexpr size_t kPieceBytes = 1024;

// Reads a protocol buffer field by field: a number and its value, which is a varint, four or eight bytes, or a text.
class ProtobufFields {
 public:
  ProtobufFields(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  // Goes to the next field; false at the end.
  bool next() {
    if (bytes_.empty()) return false;
    const uint64_t tag = varint();
    field = tag >> 3;
    switch (tag & 7) {
      case 0:
        number = varint();
        return true;
      case 1:
        text = take(8);
        return true;
      case 2:
        text = take(varint());
        return true;
      case 5:
        text = take(4);
        return true;
      default:
        refuse();
    }
  }
  float real() const {
    float value = 0;
    if (text.size() != sizeof value) refuse();
    std::memcpy(&value, text.data(), sizeof value);
    return value;
  }

  uint64_t field = 0, number = 0;
  std::string_view text;

 private:
  [[noreturn]] void refuse() const { base::fail_input("{}: not a SentencePiece model", name_); }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size()) refuse();
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    refuse();
  }

  std::string_view bytes_;
  const std::string& name_;
};

// The library follows a compiled character map without checking it, so it is checked here. The map is the byte length of a double-array
// trie, the trie (Darts-clone: a unit holds a label, the offset of its children and whether one of them is a value), and the replacement
// texts, each ended by a NUL.
void check_character_map(std::string_view map, const std::string& name) {
  const auto refuse_if = [&](bool wrong) {
    if (wrong) base::fail_input("{}: its character map (precompiled_charsmap) is damaged", name);
  };
  if (map.empty()) return;
  uint32_t bytes = 0;
  refuse_if(map.size() < sizeof bytes);
  std::memcpy(&bytes, map.data(), sizeof bytes);
  map.remove_prefix(sizeof bytes);
  refuse_if(bytes >= map.size() || bytes % sizeof(uint32_t) != 0 || bytes == 0 || map.back() != '\0');
  std::vector<uint32_t> units(bytes / sizeof(uint32_t));
  std::memcpy(units.data(), map.data(), bytes);
  const size_t texts = map.size() - bytes;
  for (size_t i = 0; i < units.size(); ++i) {
    const uint32_t unit = units[i];
    if (i > 0 && unit >> 31) continue;  // a value; the first is the root whatever it says
    const size_t children = i ^ (static_cast<size_t>(unit >> 10) << ((unit & (1u << 9)) >> 6));
    refuse_if((children | 0xff) >= units.size());
    refuse_if((unit >> 8 & 1) && (units[children] & 0x7fffffffu) >= texts);
  }
}

ScoredPiece read_piece(std::string_view bytes, const std::string& name) {
  ScoredPiece piece;
  ProtobufFields fields(bytes, name);
  while (fields.next()) {
    if (fields.field == 1) piece.text = fields.text;
    if (fields.field == 2) piece.score = fields.real();
    if (!std::isfinite(piece.score)) base::fail_input("{}: piece \"{}\" has the score {}", name, piece.text.substr(0, 80), piece.score);
    if (fields.field == 3) {
      if (fields.number < 1 || fields.number > 6)
        base::fail_input("{}: piece \"{}\" is of kind {}", name, piece.text.substr(0, 80), fields.number);
      piece.kind = static_cast<ScoredPiece::Kind>(fields.number - 1);
    }
  }
  return piece;
}

}  // namespace

SentencepieceModel read_sentencepiece_model(std::string_view bytes, const std::string& name) {
  SentencepieceModel model;
  ProtobufFields fields(bytes, name);
  while (fields.next()) {
    if (fields.field == 1) {
      if (model.pieces.size() == kPiecesMax) base::fail_input("{}: more than {} pieces", name, kPiecesMax);
      model.pieces.push_back(read_piece(fields.text, name));
      const std::string& text = model.pieces.back().text;
      if (text.empty()) base::fail_input("{}: piece {} is empty", name, model.pieces.size() - 1);
      if (text.size() > kPieceBytes || text.find('\0') != std::string::npos)
        base::fail_input("{}: piece {} has {} bytes{}", name, model.pieces.size() - 1, text.size(),
                         text.size() > kPieceBytes ? fmt::format(", and at most {} are read", kPieceBytes) : ", and a NUL among them");
    } else if (fields.field == 2) {
      ProtobufFields trainer(fields.text, name);
      while (trainer.next()) {
        if (trainer.field != 3) continue;
        if (trainer.number < 1 || trainer.number > 4) base::fail_input("{}: a model of kind {}", name, trainer.number);
        model.kind = static_cast<SentencepieceModel::Kind>(trainer.number);
      }
    } else if (fields.field == 3 || fields.field == 5) {  // what is done to a text, and to what comes back
      ProtobufFields normalizer(fields.text, name);
      while (normalizer.next()) {
        if (normalizer.field == 2) check_character_map(normalizer.text, name);
        if (fields.field == 5) continue;
        if (normalizer.field == 1) model.normalizer = normalizer.text;
        if (normalizer.field == 2) model.character_map = normalizer.text;
        if (normalizer.field == 3) model.add_dummy_prefix = normalizer.number != 0;
        if (normalizer.field == 4) model.remove_extra_whitespaces = normalizer.number != 0;
      }
    }
  }
  if (model.pieces.empty()) base::fail_input("{}: not a SentencePiece model (it has no pieces)", name);
  return model;
}

}  // namespace cairn::data
