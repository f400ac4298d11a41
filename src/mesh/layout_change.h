#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "mesh/placement.h"

namespace cairn::mesh {

// Where a tensor lies (on which mesh) and how (split, replicated, partial).
struct Layout {
  Mesh mesh;
  Placement placement = {};
  bool operator==(const Layout&) const = default;
};

// One tensor's change from one layout to another: what redistribute carries out. The meshes may differ and need not share a rank.
struct LayoutChange {
  Layout from;
  Layout to;
  std::vector<int64_t> shape;  // of the whole tensor
  bool operator==(const LayoutChange&) const = default;
};

// Refuses meshes and placements that do not fit the shape.
void check(const LayoutChange& change);

// Whether an axis is partial in the same way before and after. Then nothing is reduced along it: each coordinate keeps its own term.
bool stays_partial(const LayoutChange& change, const std::string& axis);

// "[7, 5]: dp: split(0) on dp=2 -> replicated on dp=4 on [2-5]"; equal texts are equal changes.
std::string to_string(const LayoutChange& change);

// The layout of the gradient of a tensor with this layout, where each rank differentiates its own computation: a replicated value gets a
// partial gradient, a partial value a replicated one, and split stays split. Refuses partial maxima, which are not linear.
Layout dual(const Layout& layout);

// The change that turns the gradient of the result into the gradient of the input: from dual(to) to dual(from).
LayoutChange backward_of(const LayoutChange& change);

}  // namespace cairn::mesh
