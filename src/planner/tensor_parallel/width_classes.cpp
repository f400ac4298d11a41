#include "planner/tensor_parallel/width_classes.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace cairn::planner {
namespace {

class ClassMaker {
 public:
  explicit ClassMaker(const OpGraph& graph) : graph_(graph), parent_(graph.tensors.size()), whole_(graph.tensors.size(), false) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  WidthClasses make() {
    for (const GraphOp& op : graph_.ops) join_by(op);
    number();
    for (size_t i = 0; i < graph_.ops.size(); ++i) note(static_cast<int>(i));
    mark_last();
    count_depths();
    return std::move(found_);
  }

 private:
  bool is_value(int tensor) const {
    const GraphTensor& t = graph_.tensors[static_cast<size_t>(tensor)];
    return t.kind != GraphTensor::Kind::parameter && t.shape.size() == 3;
  }
  // Values that an operation reads or makes, with their letters.
  std::vector<std::pair<int, std::string>> values_of(const GraphOp& op) const {
    std::vector<std::pair<int, std::string>> all;
    const std::vector<std::string> names = subscripts(op);
    for (size_t i = 0; i < names.size(); ++i)
      if (const int t = i < op.inputs.size() ? op.inputs[i] : op.output; is_value(t)) all.emplace_back(t, names[i]);
    return all;
  }

  bool feeds_attention(int tensor) const {
    const std::vector<int> all = graph_.readers(tensor);
    return std::any_of(all.begin(), all.end(),
                       [&](int op) { return graph_.ops[static_cast<size_t>(op)].kind == GraphOp::Kind::attention; });
  }

  int first_of(int tensor) const {
    while (parent_[static_cast<size_t>(tensor)] != tensor) tensor = parent_[static_cast<size_t>(tensor)];
    return tensor;
  }
  void join(int a, int b) { parent_[static_cast<size_t>(std::max(first_of(a), first_of(b)))] = std::min(first_of(a), first_of(b)); }

  void join_by(const GraphOp& op) {
    const auto values = values_of(op);
    std::map<char, int> first;
    for (const auto& [tensor, dims] : values) {
      const char width = dims.back();
      const bool needs_all = op.whole.find(width) != std::string::npos;
      if (needs_all || graph_.tensors[static_cast<size_t>(tensor)].kind == GraphTensor::Kind::input)
        whole_[static_cast<size_t>(tensor)] = true;
      if (needs_all || op.kind == GraphOp::Kind::product) continue;
      const auto [before, fresh] = first.try_emplace(width, tensor);
      if (!fresh) join(before->second, tensor);
    }
    // The result of a lookup is a partial sum, since tables are split by rows; but a bias of an attention is split by its heads.
    if (op.kind == GraphOp::Kind::lookup && !feeds_attention(op.output)) whole_[static_cast<size_t>(op.output)] = true;
  }

  void number() {
    found_.of.assign(graph_.tensors.size(), -1);
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const int tensor = static_cast<int>(t);
      if (!is_value(tensor)) continue;
      int& mine = found_.of[static_cast<size_t>(first_of(tensor))];  // the first of a class has the lowest number
      if (mine < 0) {
        mine = static_cast<int>(found_.classes.size());
        found_.classes.emplace_back();
      }
      found_.of[t] = mine;
      WidthClass& one = found_.classes[static_cast<size_t>(mine)];
      one.values.push_back(tensor);
      one.whole = one.whole || whole_[t];
    }
  }

  WidthClass& class_of(int tensor) { return found_.classes[static_cast<size_t>(found_.of[static_cast<size_t>(tensor)])]; }

  void note(int place) {
    const GraphOp& op = graph_.ops[static_cast<size_t>(place)];
    const std::vector<std::string> names = subscripts(op);
    for (const auto& [tensor, dims] : values_of(op)) {
      WidthClass& one = class_of(tensor);
      if (op.kind == GraphOp::Kind::product) (tensor == op.output ? one.makers : one.readers).push_back(place);
      if (op.kind == GraphOp::Kind::attention && tensor == op.output) one.attentions.push_back(place);
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        const size_t dim = names[i].find(dims.back());
        if (graph_.tensors[static_cast<size_t>(op.inputs[i])].kind == GraphTensor::Kind::parameter && dim != std::string::npos)
          one.edges.push_back({op.inputs[i], static_cast<int>(dim)});
      }
    }
  }

  void mark_last() {
    std::vector<bool> read(graph_.tensors.size(), false);
    for (const GraphOp& op : graph_.ops) {
      if (op.kind == GraphOp::Kind::cross_entropy && op.inner.find(subscripts(op)[0].back()) != std::string::npos) continue;
      for (const int input : op.inputs) read[static_cast<size_t>(input)] = true;
    }
    for (WidthClass& one : found_.classes)
      one.last = std::any_of(one.values.begin(), one.values.end(), [&](int value) { return !read[static_cast<size_t>(value)]; });
  }

  void count_depths() {
    const auto far = static_cast<int64_t>(graph_.ops.size()) + 1;
    for (WidthClass& one : found_.classes) one.depth = one.whole || one.makers.empty() ? 0 : far;
    for (bool changed = true; changed;) {
      changed = false;
      for (const GraphOp& op : graph_.ops) {
        if (op.kind != GraphOp::Kind::product) continue;
        WidthClass& out = class_of(op.output);
        const int64_t here = class_of(op.inputs[0]).depth + 1;
        if (here < out.depth) out.depth = here, changed = true;
      }
    }
  }

  const OpGraph& graph_;
  std::vector<int> parent_;  // by tensor: one of its class with a lower number, or itself
  std::vector<bool> whole_;
  WidthClasses found_;
};

}  // namespace

WidthClasses width_classes(const OpGraph& graph) { return ClassMaker(graph).make(); }

}  // namespace cairn::planner
