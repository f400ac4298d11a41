#include "planner/graph/op_graph.h"

namespace cairn::planner {
namespace {

bool is_cut_freely(const GraphTensor& tensor, size_t dim) { return tensor.grains.empty() || tensor.grains[dim] == Grain{}; }

bool propagate_in(OpGraph& graph, const GraphOp& op) {
  const std::vector<std::string> all = subscripts(op);
  const auto place = [&](size_t i) { return i < op.inputs.size() ? op.inputs[i] : op.output; };
  bool changed = false;
  for (size_t from = 0; from < all.size(); ++from)
    for (size_t dim = 0; dim < all[from].size(); ++dim) {
      const GraphTensor& source = graph.tensors[static_cast<size_t>(place(from))];
      if (is_cut_freely(source, dim) || op.whole.find(all[from][dim]) != std::string::npos) continue;
      const Grain grain = source.grains[dim];
      const int64_t size = source.shape[dim];
      for (size_t to = 0; to < all.size(); ++to) {
        const size_t there = all[to].find(all[from][dim]);
        if (there == std::string::npos) continue;
        const GraphTensor& target = graph.tensors[static_cast<size_t>(place(to))];
        if (target.shape[there] != size || !is_cut_freely(target, there)) continue;
        set_grain(graph, place(to), there, grain);
        changed = true;
      }
    }
  return changed;
}

}  // namespace

void set_grain(OpGraph& graph, int tensor, size_t dim, const Grain& grain) {
  GraphTensor& of = graph.tensors[static_cast<size_t>(tensor)];
  if (grain == Grain{}) return;
  of.grains.resize(of.shape.size());
  of.grains[dim] = grain;
}

void propagate_grains(OpGraph& graph) {
  for (bool changed = true; changed;) {
    changed = false;
    for (const GraphOp& op : graph.ops)
      if (op.kind != GraphOp::Kind::attention && op.kind != GraphOp::Kind::other) changed = propagate_in(graph, op) || changed;
  }
}

}  // namespace cairn::planner
