#include "mesh/layout_change.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace cairn::mesh {
namespace {

void add_axes(const Mesh& mesh, std::vector<std::string>& names) {
  for (const Axis& axis : mesh.axes)
    if (std::find(names.begin(), names.end(), axis.name) == names.end()) names.push_back(axis.name);
  for (const Mesh& part : mesh.parts) add_axes(part, names);
}

Placement::How dual_of(const Placement::How& how, const Layout& layout) {
  if (const Ragged* ragged = std::get_if<Ragged>(&how)) {
    Ragged flipped = *ragged;
    flipped.partial = !ragged->partial;
    return flipped;
  }
  if (std::holds_alternative<Replicate>(how)) return Partial{};
  if (const Partial* partial = std::get_if<Partial>(&how)) {
    if (partial->reduce != Partial::Reduce::sum)
      base::fail_input("placement \"{}\" has no gradient: a partial maximum is no linear function", to_string(layout.placement));
    return Replicate{};
  }
  return how;
}

}  // namespace

void check(const LayoutChange& change) {
  for (const int64_t size : change.shape)
    if (size < 0) base::fail_input("a tensor of shape [{}]", fmt::join(change.shape, ", "));
  for (const Layout* layout : {&change.from, &change.to}) {
    check(layout->mesh);
    check(layout->placement, layout->mesh, change.shape);
  }
}

bool stays_partial(const LayoutChange& change, const std::string& axis) {
  const Placement::How before = change.from.placement.on(axis);
  return is_partial(before) && change.from.mesh == change.to.mesh && before == change.to.placement.on(axis);
}

std::string to_string(const LayoutChange& change) {
  return fmt::format("[{}]: {} on {} -> {} on {}", fmt::join(change.shape, ", "), to_string(change.from.placement),
                     to_string(change.from.mesh), to_string(change.to.placement), to_string(change.to.mesh));
}

Layout dual(const Layout& layout) {
  Layout result{layout.mesh, {}};
  for (const Placement::OnAxis& on : layout.placement.axes) result.placement.axes.push_back({on.axis, dual_of(on.how, layout)});
  std::vector<std::string> names;
  add_axes(layout.mesh, names);
  for (const std::string& name : names) {  // an axis that nothing is said about is replicated
    const auto said = [&](const Placement::OnAxis& on) { return on.axis == name; };
    if (std::none_of(layout.placement.axes.begin(), layout.placement.axes.end(), said)) result.placement.axes.push_back({name, Partial{}});
  }
  return result;
}

LayoutChange backward_of(const LayoutChange& change) { return {dual(change.to), dual(change.from), change.shape}; }

}  // namespace cairn::mesh
