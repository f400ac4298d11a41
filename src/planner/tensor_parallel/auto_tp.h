#pragma once
#include <map>
#include <string>
#include <vector>

#include "mesh/placement.h"
#include "planner/graph/op_graph.h"
#include "planner/sbp/signatures.h"

namespace cairn::planner {

// Where a parameter lies along tp, and by which rule.
struct RuledPlacement {
  std::string parameter;
  mesh::Placement::How how;
  std::string rule;  // "R2: feeds an attention, whole heads", "R1: first of a pair", "replicated: one dim", ...
};

// What somebody wants otherwise, by name; * stands for anything. Of several that fit a parameter the first counts.
struct PlacementOverride {
  std::string pattern;
  Sbp sbp;  // B or S
};
using Overrides = std::vector<PlacementOverride>;

// Heads that cannot be split over so many ranks: refused, with the numbers that would do; or kept on every rank.
enum class OddHeads { refuse, replicate };

// Tensor parallelism from two rules (RedCoast, arXiv:2310.16355), by what feeds what and never by names:
//
//   R2  products that make the heads of an attention are split by heads, the product that reads its result by its inputs.
//   R1  along a chain of products inside a branch: the first is split by its outputs, the next by its inputs, and so on, so that one sum
//       follows each pair. The last of an odd chain is split by its outputs and gathered, or kept everywhere: whichever is fewer bytes.
//
// Before R1, what makes the logits is split by its outputs. Tables are split by their rows, but for those of positions. A bias lies as what
// it is added to; everything else is on every rank. Parts are as even as units (heads) allow. One entry for each parameter, in the graph's
// order.
std::vector<RuledPlacement> auto_tp(const OpGraph& graph, int ranks, const Overrides& overrides = {}, OddHeads odd = OddHeads::refuse);

// The same as inference takes it (InferOptions::fixed): along tp by the rules, whole along every other axis; odd heads are kept everywhere.
std::map<std::string, NdSbp> sbp_by_rules(const OpGraph& graph, const mesh::Mesh& mesh, const Overrides& overrides = {});

// A parameter of which nothing but this is known. Its name is a path, with dots or slashes.
struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};

// Tensor parallelism guessed from names, for a list of parameters without a graph: the matching of RedCoast's own code. Parameters whose
// last two words are the same share one rule, and a dim is split only where all of them can be, evenly. Prefer auto_tp where there is a
// graph. Matrices called "kernel" are stored [in, out], all others [out, in].
std::vector<RuledPlacement> hint_tp(const std::vector<NamedShape>& parameters, int ranks);

}  // namespace cairn::planner
