// SBP signatures (OneFlow, arXiv:2110.15032): how operations and tensors are placed along the axes of a mesh.
//
// Along one axis a tensor is S(dim), split along a dim; B, broadcast: the whole of it on every rank; or P, partial: each rank has a term,
// and the tensor is their sum. (PyTorch's DTensor calls these Shard, Replicate and Partial.) Along several axes it has one of them per
// axis, its NdSbp. A signature says which SBP an operation wants of its inputs and gives to its output. "Boxing" is the redistribution
// between two.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "planner/graph/op_graph.h"

namespace cairn::planner {

// The placement of a tensor along one axis. The intervals of a split follow from the tensor's grains.
struct Sbp {
  enum class Kind : uint8_t { replicate, partial, split };
  Kind kind = Kind::replicate;
  int8_t dim = 0;
  bool operator==(const Sbp&) const = default;
  auto operator<=>(const Sbp&) const = default;
};
inline constexpr Sbp kReplicate{};
inline constexpr Sbp kPartial{Sbp::Kind::partial, 0};
constexpr Sbp split_of(int dim) { return {Sbp::Kind::split, static_cast<int8_t>(dim)}; }

// One for each axis of a mesh, in the mesh's order.
using NdSbp = std::vector<Sbp>;

std::string to_string(const Sbp& sbp);                               // "B", "P", "S0"
std::string to_string(const NdSbp& nd_sbp, const mesh::Mesh& mesh);  // "dp S0, tp B"
Sbp parse_sbp(std::string_view text);

// The SBP of the gradient, where each rank differentiates what it computed itself: S stays, B and P change places (mesh::dual).
Sbp dual(Sbp sbp);
NdSbp dual(const NdSbp& nd_sbp);

// One way to run an operation in parallel along one axis: what each input must be, and what the output then is.
struct SbpSignature {
  std::vector<Sbp> inputs = {};
  Sbp output = {};
  char letter = 0;  // the index that is split; 0: none, every rank computes everything
  bool operator==(const SbpSignature&) const = default;
};

// Every valid signature of an operation over so many ranks, in a fixed order, from its indices ("bsk,nk->bsn") alone:
//   split an index of the output       inputs that have it are S, others B; the output is S
//   split an index of inputs only (k)  they are S; the output is P, a sum over the ranks
//   where the operation is linear      P in, P out
//   split an index exchanged inside    the same as inputs only: each rank has a term of the result
//   split nothing                      everything is B
// Left out: indices that the operation needs whole, and dims shorter than the number of ranks.
std::vector<SbpSignature> signatures(const OpGraph& graph, const GraphOp& op, int ranks);

// The SBP of a placement along one axis.
Sbp sbp_of(const mesh::Placement::How& how);

// The placement along an axis of so many ranks, with its intervals; none where the tensor cannot be cut so.
std::optional<mesh::Placement::How> how_of(const GraphTensor& tensor, Sbp sbp, int ranks);

// Whether the placements of all axes go together: a dim that is cut in units (heads) is cut along one axis only, and no dim into more parts
// than it has.
bool fits(const GraphTensor& tensor, const NdSbp& nd_sbp, const mesh::Mesh& mesh);
mesh::Placement placement_of(const GraphTensor& tensor, const NdSbp& nd_sbp, const mesh::Mesh& mesh);

}  // namespace cairn::planner
