#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "mesh/placement.h"

namespace cairn::mesh {

// Where a tensor is and how it lies there.
struct Layout {
  Mesh mesh;
  Placement placement = {};
  bool operator==(const Layout&) const = default;
};

// One tensor's change from a layout to another; the meshes may differ or have no rank in common.
struct LayoutChange {
  Layout from;
  Layout to;
  std::vector<int64_t> shape;  // of the logical tensor
  bool operator==(const LayoutChange&) const = default;
};

// Refuses meshes and placements that do not fit.
void check(const LayoutChange& change);

// Whether an axis is partial before and after in the same way, so that each coordinate goes on with its own value.
bool stays_partial(const LayoutChange& change, const std::string& axis);

// "[7, 5]: dp: split(0) on dp=2 -> replicated on dp=4 on [2-5]"; equal texts are equal changes.
std::string to_string(const LayoutChange& change);

// How the gradient of a tensor lies that lies like this, when each rank differentiates what it did itself: replicated values get partial
// gradients and partial values replicated ones; split stays split. Refuses partial maxima, which are no linear function.
Layout dual(const Layout& layout);

// What is done to the gradient of the result to get the gradient of the input: the reverse pair between the duals.
LayoutChange backward_of(const LayoutChange& change);

}  // namespace cairn::mesh
