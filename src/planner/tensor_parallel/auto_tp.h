#pragma once
#include <map>
#include <string>
#include <vector>

#include "mesh/placement.h"
#include "planner/graph/op_graph.h"
#include "planner/sbp/signatures.h"

namespace cairn::planner {

// The placement of a parameter along tp, and the rule that gave it.
struct RuledPlacement {
  std::string parameter;
  mesh::Placement::How how;
  std::string rule;  // "R2: feeds an attention, whole heads", "R1: first of a pair", "replicated: one dim", ...
};

// A placement that the user wants instead. `pattern`: of parameter names, * stands for anything; the first that matches counts.
struct PlacementOverride {
  std::string pattern;
  Sbp sbp;  // B or S
};
using Overrides = std::vector<PlacementOverride>;

// What happens with heads that cannot be split over so many ranks: bad_input with the numbers that work, or replication.
enum class OddHeads { refuse, replicate };

// Automatic tensor parallelism by two rules (RedCoast, arXiv:2310.16355), from the data flow and never from names:
//
//   R2  Products that make the heads of an attention are split by heads; the product that reads its result is split by its inputs.
//   R1  Along a chain of products inside a branch, the first is split by its outputs, the next by its inputs, and so on, so that one
//       all-reduce follows each pair. The last of an odd chain is split by its outputs and gathered, or replicated: whichever is fewer
//       bytes.
//
// Before R1, the product that makes the logits is split by its outputs. Embedding tables are split by rows, except those of positions. A
// bias is placed as what it is added to; everything else is replicated. Parts are as even as units (heads) allow. One entry for each
// parameter, in the graph's order.
std::vector<RuledPlacement> auto_tp(const OpGraph& graph, int ranks, const Overrides& overrides = {}, OddHeads odd = OddHeads::refuse);

// The same as fixed placements for inference (InferOptions::fixed): along tp by the rules, replicated along every other axis and for heads
// that cannot be split.
std::map<std::string, NdSbp> sbp_by_rules(const OpGraph& graph, const mesh::Mesh& mesh, const Overrides& overrides = {});

// A parameter of which only name and shape are known. The name is a path, with dots or slashes.
struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};

// Tensor parallelism guessed from names, for a list of parameters without a graph: the matching of RedCoast's own code. Parameters whose
// last two words are the same share one rule, and a dim is split only where all of them can be, evenly. Prefer auto_tp where there is a
// graph. Matrices called "kernel" are stored [in, out], all others [out, in].
std::vector<RuledPlacement> hint_tp(const std::vector<NamedShape>& parameters, int ranks);

}  // namespace cairn::planner
