#include "planner/placed.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checksum.h"
#include "base/json.h"
#include "base/text.h"
#include "mesh/redistribute_plan.h"

namespace cairn::planner {
namespace {

std::string carriers(const mesh::RedistributePlan& plan) {
  std::vector<std::string> names;
  for (const auto& round : plan.rounds())
    for (const mesh::Step& step : round)
      if (const std::string name(mesh::name(step.by));
          step.by != mesh::Carrier::copy && std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(name);
  return names.empty() ? "slice" : fmt::format("{}", fmt::join(names, " and "));
}

std::string_view word(Move::When when) {
  return when == Move::When::forward ? "forward" : when == Move::When::backward ? "backward" : "gradient";
}

}  // namespace

int64_t ways_of(const mesh::Mesh& mesh, const std::vector<Forms>& needs) {
  int64_t ways = 1;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const bool shared = std::any_of(needs.begin(), needs.end(), [&](const Forms& f) { return f[axis].kind == Form::Kind::split; });
    if (shared) ways *= mesh.axes[axis].size;
  }
  return ways;
}

int64_t inner_bytes(const mesh::Mesh& mesh, const GraphOp& op, const std::vector<Forms>& needs) {
  int64_t bytes = 0;
  const std::vector<std::string> all = letters(op);
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const int64_t ranks = mesh.axes[axis].size;
    bool inner = false;
    for (size_t i = 0; i < needs.size(); ++i)
      if (const Form form = needs[i][axis]; form.kind == Form::Kind::split && ranks > 1)
        inner = inner || op.inner.find(all[i][static_cast<size_t>(form.dim)]) != std::string::npos;
    if (!inner) continue;
    const double others = static_cast<double>(mesh.size()) / static_cast<double>(ways_of(mesh, needs));
    bytes += static_cast<int64_t>(2.0 * static_cast<double>(ranks - 1) * op.inner_elements * others * 4.0);
  }
  return bytes;
}

void settle(Placed& placed, Boxing& boxing) {
  placed.moves.clear();
  placed.inner.clear();
  placed.bytes = 0, placed.cost = 0, placed.flops = 0;
  const auto add = [&](Move move, const Price& price, const mesh::Change& change) {
    if (price.free() && move.when != Move::When::forward) return;
    move.by = carriers(mesh::RedistributePlan(change));
    move.bytes = price.bytes;
    move.cost = price.cost;
    placed.bytes += price.bytes;
    placed.cost += price.cost;
    placed.moves.push_back(std::move(move));
  };
  for (size_t o = 0; o < placed.graph.ops.size(); ++o) {
    const GraphOp& op = placed.graph.ops[o];
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const Forms &from = placed.tensors[static_cast<size_t>(op.inputs[i])], &to = placed.needs[o][i];
      if (from == to) continue;
      const auto same =
          std::find_if(placed.moves.begin(), placed.moves.end(), [&](const Move& m) { return m.tensor == op.inputs[i] && m.to == to; });
      if (same != placed.moves.end()) {
        if (same->readers.back() != static_cast<int>(o)) same->readers.push_back(static_cast<int>(o));
        continue;
      }
      const GraphTensor& tensor = placed.graph.tensors[static_cast<size_t>(op.inputs[i])];
      add({.tensor = op.inputs[i], .from = from, .to = to, .readers = {static_cast<int>(o)}}, boxing.forward(tensor, from, to),
          boxing.change(tensor, from, to));
    }
    if (const int64_t bytes = inner_bytes(placed.mesh, op, placed.needs[o]); bytes > 0) {
      placed.inner.push_back({static_cast<int>(o), bytes});
      placed.bytes += bytes;
      if (boxing.prices().links.empty()) placed.cost += static_cast<double>(bytes);
    }
    placed.flops += op.flops * (placed.training ? 3 : 1) / static_cast<double>(ways_of(placed.mesh, placed.needs[o]));
  }
  if (boxing.prices().flops_per_s > 0) placed.cost += placed.flops / boxing.prices().flops_per_s;
  if (!placed.training) return;
  const std::vector<Move> forward = placed.moves;
  for (auto move = forward.rbegin(); move != forward.rend(); ++move) {
    const GraphTensor& tensor = placed.graph.tensors[static_cast<size_t>(move->tensor)];
    if (!tensor.differentiable) continue;
    Move back = *move;
    back.when = Move::When::backward;
    add(std::move(back), boxing.backward(tensor, move->from, move->to), mesh::backward_of(boxing.change(tensor, move->from, move->to)));
  }
  for (size_t t = 0; t < placed.tensors.size(); ++t) {
    const GraphTensor& tensor = placed.graph.tensors[t];
    if (tensor.kind != GraphTensor::Kind::parameter || !tensor.differentiable) continue;
    add({.when = Move::When::gradient, .tensor = static_cast<int>(t), .from = placed.tensors[t], .to = placed.gradients[t], .readers = {}},
        boxing.gradient(tensor, placed.tensors[t], placed.gradients[t]),
        boxing.gradient_change(tensor, placed.tensors[t], placed.gradients[t]));
  }
}

std::string describe(const Placed& placed) {
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
    const Forms from = move.when == Move::When::forward ? move.from : move.when == Move::When::backward ? dual(move.to) : dual(move.from);
    const Forms to = move.when == Move::When::backward ? dual(move.from) : move.to;
    std::vector<std::string> readers;
    for (const int reader : move.readers) readers.push_back(placed.graph.ops[static_cast<size_t>(reader)].name);
    text += fmt::format("{:3}  {:8}  {:{}}  {} -> {}  by {}, {}{}\n", m, word(move.when), name, width, to_string(from, placed.mesh),
                        to_string(to, placed.mesh), move.by, base::human_bytes(move.bytes),
                        readers.empty() ? std::string() : fmt::format(", for {}", fmt::join(readers, ", ")));
  }
  for (const InnerSum& sum : placed.inner)
    text += fmt::format("     inside    {:{}}  sums over the ranks, {}\n", placed.graph.ops[static_cast<size_t>(sum.op)].name, width,
                        base::human_bytes(sum.bytes));
  return text + fmt::format("\n{} in all\n", base::human_bytes(placed.bytes));
}

std::string to_json(const Placed& placed) {
  base::OrderedJson tensors = base::OrderedJson::object(), moves = base::OrderedJson::array();
  for (size_t t = 0; t < placed.tensors.size(); ++t)
    tensors[placed.graph.tensors[t].name] = mesh::to_string(placement_of(placed.graph.tensors[t], placed.tensors[t], placed.mesh));
  for (const Move& move : placed.moves) {
    base::OrderedJson readers = base::OrderedJson::array();
    for (const int reader : move.readers) readers.push_back(placed.graph.ops[static_cast<size_t>(reader)].name);
    moves.push_back({{"when", word(move.when)},
                     {"tensor", placed.graph.tensors[static_cast<size_t>(move.tensor)].name},
                     {"from", to_string(move.from, placed.mesh)},
                     {"to", to_string(move.to, placed.mesh)},
                     {"by", move.by},
                     {"bytes", move.bytes},
                     {"for", readers}});
  }
  return base::pretty({{"mesh", mesh::to_string(placed.mesh)}, {"tensors", tensors}, {"moves", moves}, {"bytes", placed.bytes}}) + "\n";
}

uint64_t hash_of(const Placed& placed) { return base::checksum(to_json(placed)); }

}  // namespace cairn::planner
