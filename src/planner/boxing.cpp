#include "planner/boxing.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "mesh/redistribute_plan.h"

namespace cairn::planner {
namespace {

// The outermost axis along which two ranks stand apart: whose links their messages take.
const std::string& axis_between(const mesh::Mesh& mesh, int from, int to) {
  for (const mesh::Axis& axis : mesh.axes)
    if (mesh.coordinate(from, axis.name) != mesh.coordinate(to, axis.name)) return axis.name;
  CAIRN_CHECK(false, "a message from rank {} to itself", from);
}

double seconds_of(const mesh::RedistributePlan& plan, const mesh::Mesh& mesh, const Prices& prices, int64_t item_bytes) {
  std::map<int, double> sent;
  double latency = 0;
  for (const auto& [pair, elements] : plan.traffic()) {
    const auto link = prices.links.find(axis_between(mesh, pair.first, pair.second));
    if (link == prices.links.end()) continue;
    sent[pair.first] += static_cast<double>(elements * item_bytes) / link->second.bytes_per_s;
    latency = std::max(latency, link->second.latency_s);
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

std::string text_of(const Forms& forms) {
  std::string text;
  for (const Form& form : forms) text += to_string(form);
  return text;
}

}  // namespace

bool makes_terms(const Forms& from, const Forms& to) {
  for (size_t i = 0; i < from.size(); ++i)
    if (to[i] == kPartial && from[i] != kPartial) return true;
  return false;
}

Boxing::Boxing(mesh::Mesh mesh, Prices prices) : mesh_(std::move(mesh)), prices_(std::move(prices)) {
  mesh::check(mesh_);
  if (!mesh_.parts.empty())
    base::fail_input("placements are inferred for meshes whose parts are alike, not for {}", mesh::to_string(mesh_));
  for (const auto& [axis, link] : prices_.links) {
    if (!mesh::is_axis(axis)) base::fail_input("\"{}\" is no axis", axis);
    if (link.bytes_per_s <= 0) base::fail_input("links along {}: {} bytes a second", axis, link.bytes_per_s);
  }
}

mesh::Change Boxing::change(const GraphTensor& tensor, const Forms& from, const Forms& to) const {
  return {{mesh_, placement_of(tensor, from, mesh_)}, {mesh_, placement_of(tensor, to, mesh_)}, tensor.shape};
}

mesh::Change Boxing::gradient_change(const GraphTensor& parameter, const Forms& kept, const Forms& wanted) const {
  return {mesh::dual({mesh_, placement_of(parameter, kept, mesh_)}), {mesh_, placement_of(parameter, wanted, mesh_)}, parameter.shape};
}

Price Boxing::forward(const GraphTensor& tensor, const Forms& from, const Forms& to) {
  return from == to ? Price{} : price(tensor, from, to, Way::forward);
}

Price Boxing::backward(const GraphTensor& tensor, const Forms& from, const Forms& to) {
  return from == to || !tensor.differentiable ? Price{} : price(tensor, from, to, Way::backward);
}

Price Boxing::gradient(const GraphTensor& parameter, const Forms& kept, const Forms& wanted) {
  return parameter.differentiable ? price(parameter, kept, wanted, Way::gradient) : Price{};
}

Price Boxing::price(const GraphTensor& tensor, const Forms& from, const Forms& to, Way way) {
  const std::string key = fmt::format("{}:{}:{}:{}", static_cast<int>(way), text_of(tensor), text_of(from), text_of(to));
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  const mesh::RedistributePlan plan(way == Way::gradient  ? gradient_change(tensor, from, to)
                                    : way == Way::forward ? change(tensor, from, to)
                                                          : mesh::backward_of(change(tensor, from, to)));
  Price price{.bytes = plan.cost().elements * tensor.item_bytes};
  price.cost = prices_.links.empty() ? static_cast<double>(price.bytes) : seconds_of(plan, mesh_, prices_, tensor.item_bytes);
  return known_[key] = price;
}

}  // namespace cairn::planner
