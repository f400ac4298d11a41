// Which file holds what of a tensor that several ranks have saved together: training/pieces.json. A piece is a range of a rank's local
// tensor (mesh/fragment.h), so any other layout can be cut out of the pieces without knowing the one that wrote them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "mesh/fragment.h"
#include "snapshot/safetensors_header.h"

namespace cairn::snapshot {

inline constexpr const char* kPieceIndexFile = "training/pieces.json";

struct Piece {
  std::string file;  // of the snapshot: "training/rank-00003.safetensors"
  std::string name;  // of the tensor in that file: the elements of the fragment, one dim
  mesh::Fragment fragment;
  bool operator==(const Piece&) const = default;
};

struct PiecedTensor {
  std::string name;
  SafetensorsDtype dtype{};
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;
  bool operator==(const PiecedTensor&) const = default;
};

// By section, in the order in which they were saved.
using PieceIndex = std::map<std::string, std::vector<PiecedTensor>>;

base::OrderedJson piece_index_to_json(const PieceIndex& index);
std::string format_piece_index(const PieceIndex& index);

// Throws corrupt_file with `path` for anything that is no index: a fragment outside its tensor, a tensor that its pieces do not cover
// exactly once, a file that no snapshot has.
PieceIndex parse_piece_index(const std::string& text, const std::string& path);

// The same of what one rank has written: its pieces need not cover the tensors.
PieceIndex parse_some_pieces(const base::Json& json, const std::string& path);

// Adds what other ranks have written of the same tensors. Throws CheckFailure where they say different things of one tensor.
void add_pieces(PieceIndex& index, const PieceIndex& more);

}  // namespace cairn::snapshot
