#include "data/tokenizer/sentencepiece_json.h"

#include "base/check.h"
#include "base/json.h"
#include "data/tokenizer/piece_text.h"
#include "data/tokenizer/tokenizer_json.h"

namespace cairn::data {
namespace {

using base::OrderedJson;

std::string base64(std::string_view bytes) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// What the model does to text before it puts its mark in front: a list of normalizers.
OrderedJson normalizers_of(const SentencepieceModel& model) {
  OrderedJson steps = OrderedJson::array();
  if (!model.character_map.empty()) steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", base64(model.character_map)}});
  if (model.remove_extra_whitespaces) {
    steps.push_back({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}});
  }
  return steps;
}

OrderedJson sequence_of(const OrderedJson& normalizers) {
  if (normalizers.empty()) return nullptr;
  return {{"type", "Sequence"}, {"normalizers", normalizers}};
}

std::string bpe_json(const SentencepieceModel& model) {
  const std::string plain = write_tokenizer_json(bpe_of_scored_pieces(model.pieces, model.add_dummy_prefix));
  OrderedJson steps = normalizers_of(model);
  if (steps.empty()) return plain;
  OrderedJson root = base::parse_ordered_json(plain);
  const OrderedJson& marks = root["normalizer"];
  if (marks.contains("normalizers"))
    for (const OrderedJson& step : marks["normalizers"]) steps.push_back(step);
  else
    steps.push_back(marks);
  root["normalizer"] = sequence_of(steps);
  return base::pretty(root) + "\n";
}

std::string unigram_json(const SentencepieceModel& model) {
  OrderedJson added = OrderedJson::array(), vocab = OrderedJson::array();
  OrderedJson unknown = nullptr;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const ScoredPiece& piece = model.pieces[id];
    vocab.push_back({piece.text, piece.score});
    if (piece.kind == ScoredPiece::Kind::unknown) unknown = id;
    const bool special = piece.kind == ScoredPiece::Kind::control || piece.kind == ScoredPiece::Kind::unknown;
    if (!special && piece.kind != ScoredPiece::Kind::user_defined) continue;
    added.push_back({{"id", id},
                     {"content", piece.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  bool bytes = false;
  for (const ScoredPiece& piece : model.pieces) bytes = bytes || piece.kind == ScoredPiece::Kind::byte;
  const OrderedJson mark = {
      {"type", "Metaspace"}, {"replacement", kSpaceMark}, {"prepend_scheme", model.add_dummy_prefix ? "always" : "never"}, {"split", true}};
  OrderedJson decoder = mark;
  if (bytes) decoder = {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, mark}}};
  const OrderedJson root = {{"version", "1.0"},
                            {"truncation", nullptr},
                            {"padding", nullptr},
                            {"added_tokens", added},
                            {"normalizer", sequence_of(normalizers_of(model))},
                            {"pre_tokenizer", mark},
                            {"post_processor", nullptr},
                            {"decoder", decoder},
                            {"model", {{"type", "Unigram"}, {"unk_id", unknown}, {"vocab", vocab}, {"byte_fallback", bytes}}}};
  return base::pretty(root) + "\n";
}

}  // namespace

std::string sentencepiece_json(const SentencepieceModel& model) {
  if (model.kind == SentencepieceModel::Kind::bpe) return bpe_json(model);
  if (model.kind == SentencepieceModel::Kind::unigram) return unigram_json(model);
  base::fail_input("a SentencePiece model of words or characters has no tokenizer.json; train one of kind bpe or unigram");
}

}  // namespace cairn::data
