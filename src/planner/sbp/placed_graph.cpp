#include "planner/sbp/placed_graph.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checksum.h"
#include "base/json.h"
#include "base/text.h"

namespace cairn::planner {
namespace {

std::string_view word(Move::When when) {
  return when == Move::When::forward ? "forward" : when == Move::When::backward ? "backward" : "gradient";
}

// What is redistributed from and to: gradients go the other way, between duals.
std::pair<NdSbp, NdSbp> on_the_way(const Move& move) {
  if (move.when == Move::When::forward) return {move.from, move.to};
  return move.when == Move::When::backward ? std::pair{dual(move.to), dual(move.from)} : std::pair{dual(move.from), move.to};
}

}  // namespace

int64_t parallel_degree(const mesh::Mesh& mesh, const std::vector<NdSbp>& needs) {
  int64_t degree = 1;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const bool shared = std::any_of(needs.begin(), needs.end(), [&](const NdSbp& f) { return f[axis].kind == Sbp::Kind::split; });
    if (shared) degree *= mesh.axes[axis].size;
  }
  return degree;
}

int64_t inner_bytes(const mesh::Mesh& mesh, const GraphOp& op, const std::vector<NdSbp>& needs) {
  if (op.inner.empty()) return 0;
  int64_t together = 1;  // ranks that split the index
  const std::vector<std::string> all = subscripts(op);
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis)
    for (size_t i = 0; i < needs.size(); ++i)
      if (const Sbp sbp = needs[i][axis];
          sbp.kind == Sbp::Kind::split && op.inner.find(all[i][static_cast<size_t>(sbp.dim)]) != std::string::npos) {
        together *= mesh.axes[axis].size;
        break;
      }
  const double copies = static_cast<double>(mesh.size()) / static_cast<double>(parallel_degree(mesh, needs));
  return static_cast<int64_t>(static_cast<double>(together * (together - 1) * op.inner_item_bytes) * op.inner_elements * copies);
}

double inner_cost(const mesh::Mesh& mesh, const CostModel& cost_model, int64_t bytes) {
  if (cost_model.links.empty() || bytes == 0) return static_cast<double>(bytes);
  double slowest = std::numeric_limits<double>::infinity(), latency = 0;
  for (const auto& [axis, link] : cost_model.links)
    slowest = std::min(slowest, link.bytes_per_s), latency = std::max(latency, link.latency_s);
  return static_cast<double>(bytes) / mesh.size() / slowest + 2 * latency;
}

void add_moves(PlacedGraph& placed, Boxing& boxing) {
  placed.moves.clear();
  placed.inner.clear();
  placed.bytes = 0, placed.cost = 0, placed.flops = 0;
  const auto add = [&](Move move, const BoxingCost& change_cost) {
    if (change_cost.free() && move.when != Move::When::forward) return;
    move.by = change_cost.by;
    move.bytes = change_cost.bytes;
    move.cost = change_cost.cost;
    placed.bytes += change_cost.bytes;
    placed.cost += change_cost.cost;
    placed.moves.push_back(std::move(move));
  };
  for (size_t o = 0; o < placed.graph.ops.size(); ++o) {
    const GraphOp& op = placed.graph.ops[o];
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const NdSbp &from = placed.tensors[static_cast<size_t>(op.inputs[i])], &to = placed.needs[o][i];
      if (from == to) continue;
      const auto same =
          std::find_if(placed.moves.begin(), placed.moves.end(), [&](const Move& m) { return m.tensor == op.inputs[i] && m.to == to; });
      if (same != placed.moves.end()) {
        if (same->readers.back() != static_cast<int>(o)) same->readers.push_back(static_cast<int>(o));
        continue;
      }
      const GraphTensor& tensor = placed.graph.tensors[static_cast<size_t>(op.inputs[i])];
      add({.tensor = op.inputs[i], .from = from, .to = to, .readers = {static_cast<int>(o)}}, boxing.forward(tensor, from, to));
    }
    if (const int64_t bytes = inner_bytes(placed.mesh, op, placed.needs[o]); bytes > 0) {
      placed.inner.push_back({static_cast<int>(o), bytes});
      placed.bytes += bytes;
      placed.cost += inner_cost(placed.mesh, boxing.cost_model(), bytes);
    }
    placed.flops += op.flops * (placed.training ? 3 : 1) / static_cast<double>(parallel_degree(placed.mesh, placed.needs[o]));
  }
  if (boxing.cost_model().flops_per_s > 0) placed.cost += placed.flops / boxing.cost_model().flops_per_s;
  if (!placed.training) return;
  const std::vector<Move> forward = placed.moves;
  for (auto move = forward.rbegin(); move != forward.rend(); ++move) {
    const GraphTensor& tensor = placed.graph.tensors[static_cast<size_t>(move->tensor)];
    if (!tensor.differentiable) continue;
    Move back = *move;
    back.when = Move::When::backward;
    add(std::move(back), boxing.backward(tensor, move->from, move->to));
  }
  for (size_t t = 0; t < placed.tensors.size(); ++t) {
    const GraphTensor& tensor = placed.graph.tensors[t];
    if (tensor.kind != GraphTensor::Kind::parameter || !tensor.differentiable) continue;
    add({.when = Move::When::gradient, .tensor = static_cast<int>(t), .from = placed.tensors[t], .to = placed.gradients[t], .readers = {}},
        boxing.gradient(tensor, placed.tensors[t], placed.gradients[t]));
  }
}

std::string describe(const PlacedGraph& placed) {
  size_t width = 0;
  for (const GraphTensor& tensor : placed.graph.tensors) width = std::max(width, tensor.name.size());
  std::string text = fmt::format("mesh {}\n\n{:{}}  {:18}  placement\n", mesh::to_string(placed.mesh), "tensor", width, "shape");
  for (size_t t = 0; t < placed.tensors.size(); ++t) {
    const GraphTensor& tensor = placed.graph.tensors[t];
    text += fmt::format("{:{}}  {:18}  {}\n", tensor.name, width, fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
                        to_string(placed.tensors[t], placed.mesh));
  }
  text += "\nmoves, in the order in which every rank does them\n";
  for (size_t m = 0; m < placed.moves.size(); ++m) {
    const Move& move = placed.moves[m];
    const std::string& name = placed.graph.tensors[static_cast<size_t>(move.tensor)].name;
    const auto [from, to] = on_the_way(move);
    std::vector<std::string> readers;
    for (const int reader : move.readers) readers.push_back(placed.graph.ops[static_cast<size_t>(reader)].name);
    text += fmt::format("{:3}  {:8}  {:{}}  {} -> {}  by {}, {}{}\n", m, word(move.when), name, width, to_string(from, placed.mesh),
                        to_string(to, placed.mesh), move.by, base::human_bytes(move.bytes),
                        readers.empty() ? std::string() : fmt::format(", for {}", fmt::join(readers, ", ")));
  }
  for (const InnerSum& sum : placed.inner)
    text += fmt::format("     inside    {:{}}  exchanged inside, {}\n", placed.graph.ops[static_cast<size_t>(sum.op)].name, width,
                        base::human_bytes(sum.bytes));
  return text + fmt::format("\n{} in all\n", base::human_bytes(placed.bytes));
}

std::string to_json(const PlacedGraph& placed) {
  base::OrderedJson tensors = base::OrderedJson::object(), moves = base::OrderedJson::array();
  for (size_t t = 0; t < placed.tensors.size(); ++t)
    tensors[placed.graph.tensors[t].name] = mesh::to_string(placement_of(placed.graph.tensors[t], placed.tensors[t], placed.mesh));
  for (const Move& move : placed.moves) {
    base::OrderedJson readers = base::OrderedJson::array();
    for (const int reader : move.readers) readers.push_back(placed.graph.ops[static_cast<size_t>(reader)].name);
    const auto [from, to] = on_the_way(move);
    moves.push_back({{"when", word(move.when)},
                     {"tensor", placed.graph.tensors[static_cast<size_t>(move.tensor)].name},
                     {"from", to_string(from, placed.mesh)},
                     {"to", to_string(to, placed.mesh)},
                     {"by", move.by},
                     {"bytes", move.bytes},
                     {"for", readers}});
  }
  base::OrderedJson inner = base::OrderedJson::array();
  for (const InnerSum& sum : placed.inner)
    inner.push_back({{"operation", placed.graph.ops[static_cast<size_t>(sum.op)].name}, {"bytes", sum.bytes}});
  return base::pretty({{"mesh", mesh::to_string(placed.mesh)},
                       {"tensors", tensors},
                       {"moves", moves},
                       {"inside_operations", inner},
                       {"bytes", placed.bytes}}) +
         "\n";
}

uint64_t hash_of(const PlacedGraph& placed) {
  std::string text = to_json(placed) + to_string(placed.graph);
  for (const std::vector<NdSbp>& inputs : placed.needs)
    for (const NdSbp& nd_sbp : inputs) text += to_string(nd_sbp, placed.mesh) + ";";
  for (const NdSbp& nd_sbp : placed.gradients)
    if (!nd_sbp.empty()) text += to_string(nd_sbp, placed.mesh) + ";";
  return base::checksum(text);
}

}  // namespace cairn::planner
