#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "planner/op_graph.h"

namespace cairn::planner {

// How a tensor lies along one axis, without its intervals, which follow from its grains: B, P or S(dim).
struct Form {
  enum class Kind : uint8_t { replicate, partial, split };
  Kind kind = Kind::replicate;
  int8_t dim = 0;
  bool operator==(const Form&) const = default;
  auto operator<=>(const Form&) const = default;
};
inline constexpr Form kReplicate{};
inline constexpr Form kPartial{Form::Kind::partial, 0};
constexpr Form split_of(int dim) { return {Form::Kind::split, static_cast<int8_t>(dim)}; }

// One form for each axis of a mesh, in its order.
using Forms = std::vector<Form>;

std::string to_string(const Form& form);                            // "B", "P", "S0"
std::string to_string(const Forms& forms, const mesh::Mesh& mesh);  // "dp S0, tp B"
Form parse_form(std::string_view text);

// The form that the gradient of such a tensor has, where each rank differentiates what it did itself (mesh::dual).
Form dual(Form form);
Forms dual(const Forms& forms);

// One way to share an operation out along one axis: what each input has to be, and what its output then is.
struct Signature {
  std::vector<Form> inputs = {};
  Form output = {};
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
Form form_of(const mesh::Placement::How& how);

// What coordinates hold of a tensor of this form along an axis of so many ranks; none where it cannot be cut so.
std::optional<mesh::Placement::How> how_of(const GraphTensor& tensor, Form form, int ranks);

// Whether the forms of all axes go together: a dim that is cut in units is cut along one axis only, and none into more parts than it has.
bool fits(const GraphTensor& tensor, const Forms& forms, const mesh::Mesh& mesh);
mesh::Placement placement_of(const GraphTensor& tensor, const Forms& forms, const mesh::Mesh& mesh);

}  // namespace cairn::planner
