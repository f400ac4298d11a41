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

// How a tensor lies along one axis, without its intervals, which follow from its grains: B, P or S(dim).
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

// One form for each axis of a mesh, in its order.
using NdSbp = std::vector<Sbp>;

std::string to_string(const Sbp& sbp);                               // "B", "P", "S0"
std::string to_string(const NdSbp& nd_sbp, const mesh::Mesh& mesh);  // "dp S0, tp B"
Sbp parse_sbp(std::string_view text);

// The form that the gradient of such a tensor has, where each rank differentiates what it did itself (mesh::dual).
Sbp dual(Sbp sbp);
NdSbp dual(const NdSbp& nd_sbp);

// One way to share an operation out along one axis: what each input has to be, and what its output then is.
struct Signature {
  std::vector<Sbp> inputs = {};
  Sbp output = {};
  char letter = 0;  // the index that is shared out; 0: none is, every rank computes all of it
  bool operator==(const Signature&) const = default;
};

// Every valid way over so many ranks, in a fixed order. From the indices alone:
//   an index of the output: inputs that have it are split along it, others whole, the output is split along it;
//   an index that only inputs have: they are split along it, and the output is a sum over the ranks;
//   where the operation is linear: terms in, terms out;
//   an index that is exchanged inside: likewise, each rank has a term of the result;
//   nothing: everything whole everywhere.
// Indices that the operation keeps whole, and dims shorter than the ranks are many, are left out.
std::vector<Signature> signatures(const OpGraph& graph, const GraphOp& op, int ranks);

// The form of what somebody has placed.
Sbp sbp_of(const mesh::Placement::How& how);

// What coordinates hold of a tensor of this form along an axis of so many ranks; none where it cannot be cut so.
std::optional<mesh::Placement::How> how_of(const GraphTensor& tensor, Sbp sbp, int ranks);

// Whether the forms of all axes go together: a dim that is cut in units is cut along one axis only, and none into more parts than it has.
bool fits(const GraphTensor& tensor, const NdSbp& nd_sbp, const mesh::Mesh& mesh);
mesh::Placement placement_of(const GraphTensor& tensor, const NdSbp& nd_sbp, const mesh::Mesh& mesh);

}  // namespace cairn::planner
