#include "data/tokenizer/scored_pieces.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "data/tokenizer/characters.h"
#include "data/tokenizer/piece_text.h"

namespace cairn::data {
namespace {

// Every way to put a piece together from two others, the best score first; within a piece as SentencePiece's converters order them.
std::vector<Merge> merges_of(const std::vector<ScoredPiece>& pieces) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < pieces.size(); ++id)
    if (pieces[id].kind == ScoredPiece::Kind::normal) ids.emplace(pieces[id].text, static_cast<int32_t>(id));
  std::vector<Merge> merges;
  for (size_t id = 0; id < pieces.size(); ++id) {
    const std::string_view text = pieces[id].text;
    if (pieces[id].kind != ScoredPiece::Kind::normal || ids.at(text) != static_cast<int32_t>(id)) continue;
    for (size_t at = character_at(text, 0).bytes; at < text.size(); at += character_at(text, at).bytes) {
      const auto left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
      if (left != ids.end() && right != ids.end()) merges.push_back({left->second, right->second, static_cast<int32_t>(id)});
    }
  }
  const auto key = [&](const Merge& merge) { return std::tuple(-pieces[merge.result].score, merge.result, merge.left, merge.right); };
  std::sort(merges.begin(), merges.end(), [&](const Merge& a, const Merge& b) { return key(a) < key(b); });
  return merges;
}

}  // namespace

Bpe bpe_of_scored_pieces(const std::vector<ScoredPiece>& pieces, bool prefix) {
  Bpe bpe;
  bpe.pre_tokenizers.clear();
  bpe.bytes = false;
  bpe.fuse_unknown = true;
  bpe.merges = merges_of(pieces);
  int bytes = 0;
  for (size_t id = 0; id < pieces.size(); ++id) {
    const ScoredPiece& piece = pieces[id];
    bpe.pieces.push_back(piece.text);
    bytes += piece.kind == ScoredPiece::Kind::byte;
    if (piece.kind == ScoredPiece::Kind::unknown) bpe.unknown = static_cast<int32_t>(id);
    if (piece.kind == ScoredPiece::Kind::control || piece.kind == ScoredPiece::Kind::unknown)
      bpe.added.push_back({.id = static_cast<int32_t>(id), .text = piece.text});
    if (piece.kind == ScoredPiece::Kind::user_defined)
      bpe.added.push_back({.id = static_cast<int32_t>(id), .text = piece.text, .special = false});
    if (piece.kind == ScoredPiece::Kind::control && piece.text == "<s>") bpe.begin = {static_cast<int32_t>(id)};
  }
  bpe.byte_fallback = bytes == 256;
  const std::string mark(kSpaceMark);
  if (prefix) bpe.normalizers.push_back({NormalizerStep::Kind::prepend, "", mark});
  bpe.normalizers.push_back({NormalizerStep::Kind::replace, " ", mark});
  bpe.decoding = {.byte_level = false, .replaces = {{NormalizerStep::Kind::replace, mark, " "}}, .byte_pieces = bpe.byte_fallback};
  if (prefix) {
    bpe.decoding.strip.assign(1, ' ');
    bpe.decoding.strip_first = 1;
  }
  return bpe;
}

}  // namespace cairn::data
