#include "planner/tensor_parallel/auto_tp.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "model/name_pattern.h"
#include "planner/graph/model_graph.h"
#include "planner/tensor_parallel/width_classes.h"

namespace cairn::planner {
namespace {

enum class By { nothing, heads, head, pairs };  // by which rule a class is split: R2, the rule for logits, R1

class Rules {
 public:
  Rules(const OpGraph& graph, int ranks, OddHeads odd) : graph_(graph), ranks_(ranks), odd_(odd), widths_(width_classes(graph)) {
    by_.assign(widths_.classes.size(), By::nothing);
  }

  std::vector<RuledPlacement> apply(const Overrides& overrides) {
    if (ranks_ > 1) {
      split_heads();
      split_logits();
      split_pairs();
      for (const GraphOp& op : graph_.ops) place_parameters(op);
    }
    return listed(overrides);
  }

 private:
  struct Chosen {
    Sbp sbp = kReplicate;
    std::string rule = {};
  };

  const GraphTensor& tensor(int place) const { return graph_.tensors[static_cast<size_t>(place)]; }
  const GraphOp& op(int place) const { return graph_.ops[static_cast<size_t>(place)]; }
  int class_of(int value) const { return widths_.of[static_cast<size_t>(value)]; }
  By split_by(int value) const { return class_of(value) < 0 ? By::nothing : by_[static_cast<size_t>(class_of(value))]; }

  // The first dim of a class that cannot be split over so many ranks; none where all can.
  std::optional<WidthClass::Edge> unsplittable(const WidthClass& one, int ranks) const {
    for (const WidthClass::Edge& edge : one.edges)
      if (!how_of(tensor(edge.parameter), split_of(edge.dim), ranks)) return edge;
    for (const int value : one.values)
      if (!how_of(tensor(value), split_of(2), ranks)) return WidthClass::Edge{value, 2};
    return std::nullopt;
  }

  void split_heads() {
    for (size_t i = 0; i < by_.size(); ++i) {
      const WidthClass& one = widths_.classes[i];
      if (one.attentions.empty() || one.whole) continue;
      if (const auto edge = unsplittable(one, ranks_); !edge) {
        by_[i] = By::heads;
      } else if (odd_ == OddHeads::refuse) {
        refuse(one, *edge);
      } else {
        const GraphOp& attention = op(one.attentions.front());
        why_not_[static_cast<int>(i)] = fmt::format("replicated: {} query and {} key heads cannot be split over {} ranks", attention.heads,
                                                    attention.key_heads, ranks_);
      }
    }
  }

  [[noreturn]] void refuse(const WidthClass& one, const WidthClass::Edge& edge) const {
    const GraphOp& attention = op(one.attentions.front());
    std::vector<int64_t> work{1};
    for (int n = 2; n <= attention.heads; ++n)
      if (!unsplittable(one, n)) work.push_back(n);
    base::fail_input("tp = {}: {} query and {} key heads cannot be split over so many ranks ({}): {} would work", ranks_, attention.heads,
                     attention.key_heads, tensor(edge.parameter).name, fmt::join(work, ", "));
  }

  // Whether a class may be split beside those that are: no product may be split both by its inputs and by its outputs.
  bool goes_with_others(const WidthClass& one) const {
    const auto is_apart = [&](int value) { return split_by(value) != By::nothing; };
    return std::none_of(one.makers.begin(), one.makers.end(), [&](int p) { return is_apart(op(p).inputs[0]); }) &&
           std::none_of(one.readers.begin(), one.readers.end(), [&](int p) { return is_apart(op(p).output); });
  }

  bool split_class(size_t i, By by) {
    const WidthClass& one = widths_.classes[i];
    if (!goes_with_others(one)) return false;
    if (const auto edge = unsplittable(one, ranks_)) {
      why_not_[static_cast<int>(i)] = fmt::format("replicated: {} cannot be split over {} ranks",
                                                  tensor(edge->parameter).shape[static_cast<size_t>(edge->dim)], ranks_);
      return false;
    }
    by_[i] = by;
    return true;
  }

  void split_logits() {
    for (size_t i = 0; i < by_.size(); ++i) {
      const WidthClass& one = widths_.classes[i];
      if (by_[i] == By::nothing && one.last && !one.whole && !one.makers.empty()) split_class(i, By::head);
    }
  }

  // Every second class along a chain. Of two classes at the same depth (an adapter runs beside a product), the one with more elements
  // first.
  void split_pairs() {
    std::vector<size_t> order;
    for (size_t i = 0; i < by_.size(); ++i) {
      const WidthClass& one = widths_.classes[i];
      const bool inside = !one.whole && !one.makers.empty() && !one.readers.empty();
      const bool to_itself =
          std::any_of(one.makers.begin(), one.makers.end(), [&](int p) { return class_of(op(p).inputs[0]) == static_cast<int>(i); });
      if (by_[i] == By::nothing && one.attentions.empty() && inside && !to_itself) order.push_back(i);
    }
    const auto key = [&](size_t i) {
      const WidthClass& one = widths_.classes[i];
      int64_t elements = 0;
      for (const WidthClass::Edge& edge : one.edges) elements += elements_of(edge.parameter);
      return std::tuple(one.depth, -elements, one.makers.front());
    };
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
    for (const size_t i : order) split_class(i, By::pairs);
  }

  int64_t elements_of(int place) const {
    int64_t n = 1;
    for (const int64_t size : tensor(place).shape) n *= size;
    return n;
  }

  void put(int parameter, Sbp sbp, std::string rule) { chosen_.try_emplace(parameter, Chosen{sbp, std::move(rule)}); }

  void place_parameters(const GraphOp& one) {
    if (one.kind == GraphOp::Kind::product) return place_product(one);
    if (one.kind == GraphOp::Kind::lookup) return place_table(one);
    if (one.kind != GraphOp::Kind::bias) return;
    const By by = split_by(one.output);
    const bool gathered = split_alone_.count(one.inputs[0]) > 0;
    if (by != By::nothing || gathered)
      put(one.inputs[1], split_of(0), fmt::format("{}: with what it is added to", gathered ? "R1" : word(by)));
    else
      put(one.inputs[1], kReplicate, "replicated: one dim, added once after the sum");
  }

  static std::string_view word(By by) { return by == By::heads ? "R2" : by == By::head ? "head" : "R1"; }

  void place_product(const GraphOp& one) {
    const std::vector<std::string> names = subscripts(one);
    const int weight = one.inputs[1];
    if (tensor(weight).kind != GraphTensor::Kind::parameter) return;
    const Sbp by_outputs = split_of(static_cast<int>(names[1].find(names[2].back())));
    const Sbp by_inputs = split_of(static_cast<int>(names[1].find(names[0].back())));
    const By in = split_by(one.inputs[0]), out = split_by(one.output);
    if (out == By::heads) return put(weight, by_outputs, "R2: feeds an attention, whole heads");
    if (out == By::head) return put(weight, by_outputs, "head");
    if (out == By::pairs) return put(weight, by_outputs, "R1: first of a pair");
    if (in == By::heads) return put(weight, by_inputs, "R2: follows an attention");
    if (in != By::nothing) return put(weight, by_inputs, "R1: second of a pair");
    place_alone(one, weight, by_outputs);
  }

  // A product without a partner. If split, every pass gathers its result and sums the gradient of its input; if replicated, it takes the
  // memory of the other ranks' parts.
  void place_alone(const GraphOp& one, int weight, Sbp by_outputs) {
    const int in = class_of(one.inputs[0]), out = class_of(one.output);
    for (const int near : {out, in})
      if (const auto reason = why_not_.find(near); reason != why_not_.end()) return put(weight, kReplicate, reason->second);
    const int64_t moved = tensor(one.output).item_bytes * (elements_of(one.output) + 2 * elements_of(one.inputs[0]));
    const int64_t held = tensor(weight).item_bytes * elements_of(weight);
    if (moved >= held || !how_of(tensor(weight), by_outputs, ranks_)) return put(weight, kReplicate, "replicated: without a partner");
    split_alone_.insert(one.output);
    put(weight, by_outputs, "R1: without a partner, split out and gathered");
  }

  void place_table(const GraphOp& one) {
    const int table = one.inputs[0];
    if (split_by(one.output) == By::heads)
      return put(table, split_of(static_cast<int>(subscripts(one)[0].find(subscripts(one)[2].back()))),
                 "R2: feeds an attention, whole heads");
    if (one.detail == kByPosition) return put(table, kReplicate, "replicated: a table of positions");
    if (!how_of(tensor(table), split_of(0), ranks_))
      return put(table, kReplicate, fmt::format("replicated: {} rows cannot be split over {} ranks", tensor(table).shape[0], ranks_));
    put(table, split_of(0), "embedding");
  }

  std::string left_over(int place) const {
    if (ranks_ == 1) return "replicated: one rank";
    return tensor(place).shape.size() <= 1 ? "replicated: one dim" : "replicated: no rule is for it";
  }

  std::vector<RuledPlacement> listed(const Overrides& overrides) const {
    std::vector<std::string> names;
    for (const GraphTensor& one : graph_.tensors)
      if (one.kind == GraphTensor::Kind::parameter) names.push_back(one.name);
    check_overrides(overrides, names);
    std::vector<RuledPlacement> all;
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const GraphTensor& one = graph_.tensors[t];
      if (one.kind != GraphTensor::Kind::parameter) continue;
      const auto found = chosen_.find(static_cast<int>(t));
      Chosen chosen = found == chosen_.end() ? Chosen{kReplicate, left_over(static_cast<int>(t))} : found->second;
      for (const PlacementOverride& wanted : overrides)
        if (model::matches(wanted.pattern, one.name)) {
          chosen = {wanted.sbp, fmt::format("override: {}", wanted.pattern)};
          break;
        }
      const auto how = how_of(one, chosen.sbp, ranks_);
      if (!how)
        base::fail_input("override {} = {}: {} [{}] cannot be split so over {} ranks",
                         std::string_view(chosen.rule).substr(sizeof("override: ") - 1), to_string(chosen.sbp), one.name,
                         fmt::join(one.shape, ", "), ranks_);
      all.push_back({one.name, *how, chosen.rule});
    }
    return all;
  }

  static void check_overrides(const Overrides& overrides, const std::vector<std::string>& names) {
    for (const PlacementOverride& wanted : overrides) {
      if (wanted.sbp.kind == Sbp::Kind::partial)
        base::fail_input("override {} = P: a parameter cannot be partial: use B, S0, S1, ...", wanted.pattern);
      if (std::any_of(names.begin(), names.end(), [&](const std::string& name) { return model::matches(wanted.pattern, name); })) continue;
      const auto meant = base::nearest(wanted.pattern, names);
      base::fail_input("override {}: there is no such parameter: {}", wanted.pattern,
                       meant ? fmt::format("did you mean \"{}\"?", *meant) : fmt::format("they are called {} and the like", names.front()));
    }
  }

  const OpGraph& graph_;
  int ranks_;
  OddHeads odd_;
  WidthClasses widths_;
  std::vector<By> by_;                  // by class
  std::map<int, std::string> why_not_;  // by class
  std::map<int, Chosen> chosen_;        // by parameter
  std::set<int> split_alone_;           // results of products that are split without a partner
};

}  // namespace

std::vector<RuledPlacement> auto_tp(const OpGraph& graph, int ranks, const Overrides& overrides, OddHeads odd) {
  CAIRN_CHECK(ranks >= 1, "{} ranks", ranks);
  return Rules(graph, ranks, odd).apply(overrides);
}

std::map<std::string, NdSbp> sbp_by_rules(const OpGraph& graph, const mesh::Mesh& mesh, const Overrides& overrides) {
  std::map<std::string, NdSbp> all;
  for (const RuledPlacement& one : auto_tp(graph, mesh.extent("tp"), overrides, OddHeads::replicate)) {
    NdSbp& nd_sbp = all[one.parameter];
    for (const mesh::Axis& axis : mesh.axes) nd_sbp.push_back(axis.name == "tp" ? sbp_of(one.how) : kReplicate);
  }
  return all;
}

}  // namespace cairn::planner
