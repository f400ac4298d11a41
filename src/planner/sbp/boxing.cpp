#include "planner/sbp/boxing.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "mesh/local_shard.h"
#include "mesh/redistribute_plan.h"

namespace cairn::planner {
namespace {

// The outermost axis along which two ranks differ: their messages take its links.
const std::string& axis_between(const mesh::Mesh& mesh, int from, int to) {
  for (const mesh::Axis& axis : mesh.axes)
    if (mesh.coordinate(from, axis.name) != mesh.coordinate(to, axis.name)) return axis.name;
  CAIRN_CHECK(false, "a message from rank {} to itself", from);
}

double seconds_of(const mesh::RedistributePlan& plan, const mesh::Mesh& mesh, const CostModel& cost_model, int64_t item_bytes) {
  std::map<int, double> sent;
  double latency = 0;
  for (const auto& [pair, elements] : plan.traffic()) {
    const LinkCost& link = cost_model.links.at(axis_between(mesh, pair.first, pair.second));
    sent[pair.first] += static_cast<double>(elements * item_bytes) / link.bytes_per_s;
    latency = std::max(latency, link.latency_s);
  }
  double longest = 0;
  for (const auto& [rank, seconds] : sent) longest = std::max(longest, seconds);
  return longest + latency * plan.cost().rounds;
}

std::string text_of(const GraphTensor& tensor) {
  std::string text = fmt::format("{}|{}", fmt::join(tensor.shape, ","), tensor.item_bytes);
  for (const Grain& grain : tensor.grains)
    text += fmt::format("|{},{},{},{}", grain.unit, grain.group, grain.shared, fmt::join(grain.sections, ","));
  return text;
}

std::string text_of(const NdSbp& nd_sbp) {
  std::string text;
  for (const Sbp& sbp : nd_sbp) text += to_string(sbp);
  return text;
}

// How many elements of one dim a rank wants, and how many of these it has already.
struct Overlap {
  int64_t wanted = 0, there = 0;
};
Overlap overlap(const std::vector<mesh::Interval>& wanted, const std::vector<mesh::Interval>& held) {
  Overlap sum;
  for (const mesh::Interval& a : wanted) {
    sum.wanted += a.length();
    for (const mesh::Interval& b : held) sum.there += std::max<int64_t>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
  }
  return sum;
}

std::string carriers(const mesh::RedistributePlan& plan) {
  std::vector<std::string> names;
  for (const auto& round : plan.rounds())
    for (const mesh::ExchangeStep& step : round)
      if (const std::string name(mesh::name(step.by));
          step.by != mesh::CollectiveKind::copy && std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(name);
  return names.empty() ? "slice" : fmt::format("{}", fmt::join(names, " and "));
}

constexpr int kExactUpTo = 16;  // ranks

}  // namespace

bool makes_partial(const NdSbp& from, const NdSbp& to) {
  for (size_t i = 0; i < from.size(); ++i)
    if (to[i] == kPartial && from[i] != kPartial) return true;
  return false;
}

Boxing::Boxing(mesh::Mesh mesh, CostModel cost_model) : mesh_(std::move(mesh)), cost_model_(std::move(cost_model)) {
  mesh::check(mesh_);
  if (!mesh_.parts.empty())
    base::fail_input("placements are inferred for meshes whose parts are equal, not for {}", mesh::to_string(mesh_));
  for (const auto& [axis, link] : cost_model_.links) {
    if (!mesh::is_axis(axis)) base::fail_input("\"{}\" is no axis", axis);
    if (link.bytes_per_s <= 0) base::fail_input("links along {}: {} bytes a second", axis, link.bytes_per_s);
  }
  for (const mesh::Axis& axis : mesh_.axes)
    if (axis.size > 1 && !cost_model_.links.empty() && !cost_model_.links.contains(axis.name))
      base::fail_input("links are given, but none along {}: give them for every axis of {}", axis.name, mesh::to_string(mesh_));
}

mesh::LayoutChange Boxing::change(const GraphTensor& tensor, const NdSbp& from, const NdSbp& to) const {
  return {{mesh_, placement_of(tensor, from, mesh_)}, {mesh_, placement_of(tensor, to, mesh_)}, tensor.shape};
}

mesh::LayoutChange Boxing::gradient_change(const GraphTensor& parameter, const NdSbp& kept, const NdSbp& wanted) const {
  return {mesh::dual({mesh_, placement_of(parameter, kept, mesh_)}), {mesh_, placement_of(parameter, wanted, mesh_)}, parameter.shape};
}

BoxingCost Boxing::forward(const GraphTensor& tensor, const NdSbp& from, const NdSbp& to) {
  return from == to ? BoxingCost{} : cost(tensor, from, to, Direction::forward);
}

BoxingCost Boxing::backward(const GraphTensor& tensor, const NdSbp& from, const NdSbp& to) {
  return from == to || !tensor.differentiable ? BoxingCost{} : cost(tensor, from, to, Direction::backward);
}

BoxingCost Boxing::gradient(const GraphTensor& parameter, const NdSbp& kept, const NdSbp& wanted) {
  return parameter.differentiable ? cost(parameter, kept, wanted, Direction::gradient) : BoxingCost{};
}

// Partial sums are added at one of the ranks that want the result and sent on to the others; other elements go to the ranks that lack them.
double Boxing::estimate(const mesh::LayoutChange& change, int64_t item_bytes) const {
  double terms = 1, wanters = 1;
  mesh::Placement from;  // without partial sums: a rank counts as having all that it has terms of
  std::string slowest;
  for (const mesh::Axis& axis : mesh_.axes) {
    const mesh::Placement::How before = change.from.placement.on(axis.name), after = change.to.placement.on(axis.name);
    const bool reduced = mesh::is_partial(before) && !mesh::is_partial(after);
    if (reduced) terms *= axis.size;
    if (reduced && std::holds_alternative<mesh::Replicate>(after)) wanters *= axis.size;
    if (before != after && slowest.empty()) slowest = axis.name;
    // A partial sum counts as present where it is added up.
    from.axes.push_back({axis.name, reduced ? after : mesh::is_partial(before) ? mesh::Placement::How(mesh::Replicate{}) : before});
  }
  mesh::Placement to = change.to.placement;
  // A value that becomes a partial sum stays where it is.
  for (mesh::Placement::OnAxis& on : to.axes)
    if (mesh::is_partial(on.how)) on.how = from.on(on.axis);
  double lacked = 0, held = 0;
  for (const int rank : mesh_.members()) {
    const std::vector<mesh::AxisCoordinate> axis_coordinates = mesh_.axis_coordinates(rank);
    const mesh::LocalShard have = mesh::local_shard(from, axis_coordinates, change.shape),
                           want = mesh::local_shard(to, axis_coordinates, change.shape);
    double all = 1, there = 1;
    for (size_t dim = 0; dim < change.shape.size(); ++dim) {
      const Overlap one = overlap(want.dims[dim], have.dims[dim]);
      all *= static_cast<double>(one.wanted);
      there *= static_cast<double>(one.there);
    }
    lacked += all - there;
    held += all;
  }
  // Of what a group of `terms` ranks wants, each element is wanted by `wanters` of them.
  const double bytes = (lacked + held / wanters * (terms - 1 + wanters - 1)) * static_cast<double>(item_bytes);
  if (cost_model_.links.empty() || bytes == 0) return bytes;
  const LinkCost& link = cost_model_.links.at(slowest);
  return bytes / mesh_.size() / link.bytes_per_s + link.latency_s;
}

double Boxing::estimate(const GraphTensor& tensor, const NdSbp& from, const NdSbp& to, bool and_back) {
  if (mesh_.size() <= kExactUpTo) return forward(tensor, from, to).cost + (and_back ? backward(tensor, from, to).cost : 0);
  const std::string key = fmt::format("{}:{}:{}", text_of(tensor), text_of(from), text_of(to));
  auto [known, fresh] = estimated_.try_emplace(key + (and_back ? "+" : ""), 0);
  if (fresh) {
    const mesh::LayoutChange there = change(tensor, from, to);
    known->second = estimate(there, tensor.item_bytes);
    if (and_back && tensor.differentiable) known->second += estimate(mesh::backward_of(there), tensor.item_bytes);
  }
  return known->second;
}

double Boxing::estimate_gradient(const GraphTensor& parameter, const NdSbp& kept, const NdSbp& wanted) {
  if (!parameter.differentiable) return 0;
  if (mesh_.size() <= kExactUpTo) return gradient(parameter, kept, wanted).cost;
  const std::string key = fmt::format("gradient:{}:{}:{}", text_of(parameter), text_of(kept), text_of(wanted));
  auto [known, fresh] = estimated_.try_emplace(key, 0);
  if (fresh) known->second = estimate(gradient_change(parameter, kept, wanted), parameter.item_bytes);
  return known->second;
}

BoxingCost Boxing::cost(const GraphTensor& tensor, const NdSbp& from, const NdSbp& to, Direction direction) {
  const std::string key = fmt::format("{}:{}:{}:{}", static_cast<int>(direction), text_of(tensor), text_of(from), text_of(to));
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  const mesh::RedistributePlan plan(direction == Direction::gradient  ? gradient_change(tensor, from, to)
                                    : direction == Direction::forward ? change(tensor, from, to)
                                                                      : mesh::backward_of(change(tensor, from, to)));
  BoxingCost cost{.bytes = plan.cost().elements * tensor.item_bytes, .by = carriers(plan)};
  cost.cost = cost_model_.links.empty() ? static_cast<double>(cost.bytes) : seconds_of(plan, mesh_, cost_model_, tensor.item_bytes);
  return known_[key] = cost;
}

}  // namespace cairn::planner
