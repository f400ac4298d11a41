#include "planner/graph/op_graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace cairn::planner {
namespace {

std::string_view word(GraphOp::Kind kind) {
  switch (kind) {
    case GraphOp::Kind::product:
      return "product";
    case GraphOp::Kind::attention:
      return "attention";
    case GraphOp::Kind::norm:
      return "norm";
    case GraphOp::Kind::elementwise:
      return "elementwise";
    case GraphOp::Kind::multiply:
      return "multiply";
    case GraphOp::Kind::add:
      return "add";
    case GraphOp::Kind::bias:
      return "bias";
    case GraphOp::Kind::scale:
      return "scale";
    case GraphOp::Kind::lookup:
      return "lookup";
    case GraphOp::Kind::cross_entropy:
      return "cross entropy";
    case GraphOp::Kind::mean:
      return "mean";
    case GraphOp::Kind::softmax:
      return "softmax";
    case GraphOp::Kind::other:
      break;
  }
  return "other";
}

void check_op(const OpGraph& graph, const GraphOp& op, const std::vector<bool>& there) {
  const std::vector<std::string> all = subscripts(op);
  if (all.size() != op.inputs.size() + 1)
    base::fail_input("{}: \"{}\" is for {} inputs, and there are {}", op.name, op.indices, all.size() - 1, op.inputs.size());
  std::map<char, int64_t> sizes;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool input = i < op.inputs.size();
    const auto place = static_cast<size_t>(input ? op.inputs[i] : op.output);
    CAIRN_CHECK(place < graph.tensors.size(), "{}: tensor {} of {}", op.name, place, graph.tensors.size());
    const GraphTensor& tensor = graph.tensors[place];
    if (input && !there[place]) base::fail_input("{}: reads {} before it is made", op.name, tensor.name);
    if (all[i].size() != tensor.shape.size())
      base::fail_input("{}: \"{}\" does not fit {}, which has {} dims", op.name, all[i], tensor.name, tensor.shape.size());
    for (size_t dim = 0; dim < all[i].size(); ++dim) {
      // Key heads are fewer than query heads: a letter that stands for units of several tensors has a size in each.
      const bool in_units = !tensor.grains.empty() && tensor.grains[dim] != Grain{};
      const auto [seen, fresh] = sizes.try_emplace(all[i][dim], in_units ? 0 : tensor.shape[dim]);
      if (!fresh && seen->second > 0 && !in_units && seen->second != tensor.shape[dim])
        base::fail_input("{}: index {} has {} values in one tensor and {} in {}", op.name, all[i][dim], seen->second, tensor.shape[dim],
                         tensor.name);
    }
  }
}

}  // namespace

int OpGraph::add(GraphTensor tensor) {
  tensors.push_back(std::move(tensor));
  return static_cast<int>(tensors.size()) - 1;
}

int OpGraph::add(GraphOp op, GraphTensor output) {
  op.output = add(std::move(output));
  ops.push_back(std::move(op));
  return ops.back().output;
}

int OpGraph::find(std::string_view tensor) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const GraphTensor& t) { return t.name == tensor; });
  return found == tensors.end() ? -1 : static_cast<int>(found - tensors.begin());
}

std::vector<int> OpGraph::readers(int tensor) const {
  std::vector<int> found;
  for (size_t i = 0; i < ops.size(); ++i)
    if (std::find(ops[i].inputs.begin(), ops[i].inputs.end(), tensor) != ops[i].inputs.end()) found.push_back(static_cast<int>(i));
  return found;
}

std::vector<std::string> subscripts(const GraphOp& op) {
  std::vector<std::string> all;
  const size_t arrow = op.indices.find("->");
  CAIRN_CHECK(arrow != std::string::npos, "{}: \"{}\" has no ->", op.name, op.indices);
  size_t begin = 0;
  for (size_t comma = op.indices.find(','); comma < arrow; comma = op.indices.find(',', begin)) {
    all.push_back(op.indices.substr(begin, comma - begin));
    begin = comma + 1;
  }
  all.push_back(op.indices.substr(begin, arrow - begin));
  all.push_back(op.indices.substr(arrow + 2));
  return all;
}

void check(const OpGraph& graph) {
  std::vector<bool> there;
  std::set<std::string> names;
  for (const GraphTensor& tensor : graph.tensors) {
    if (!names.insert(tensor.name).second) base::fail_input("two tensors are called {}", tensor.name);
    if (!tensor.grains.empty() && tensor.grains.size() != tensor.shape.size())
      base::fail_input("{}: {} grains for {} dims", tensor.name, tensor.grains.size(), tensor.shape.size());
    there.push_back(tensor.kind != GraphTensor::Kind::value);
  }
  for (const GraphOp& op : graph.ops) {
    check_op(graph, op, there);
    there[static_cast<size_t>(op.output)] = true;
  }
}

std::string to_string(const OpGraph& graph) {
  std::string text;
  for (const GraphOp& op : graph.ops) {
    std::vector<std::string> inputs;
    for (const int input : op.inputs) {
      const GraphTensor& tensor = graph.tensors[static_cast<size_t>(input)];
      inputs.push_back(fmt::format("{} [{}]", tensor.name, fmt::join(tensor.shape, ", ")));
    }
    text += fmt::format("{}: {} {} of {}\n", op.name, word(op.kind), op.indices, fmt::join(inputs, ", "));
  }
  return text;
}

}  // namespace cairn::planner
