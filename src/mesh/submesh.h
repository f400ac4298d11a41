#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "mesh/mesh.h"

namespace cairn::mesh {

// The ranks at one coordinate of an axis, as a mesh without that axis: one island, one pipeline stage. Refuses a coordinate that some part
// does not have.
Mesh select(const Mesh& mesh, std::string_view axis, int coordinate);

// The same ranks with several axes seen as one, which takes the name and the place of the first; coordinates count with the last listed
// fastest. Refuses a mesh with parts.
Mesh flattened(const Mesh& mesh, const std::vector<std::string>& axes);

}  // namespace cairn::mesh
