#pragma once
#include <string>

#include "mesh/mesh.h"
#include "mesh/placement.h"

namespace cairn::model {
class Model;
struct Parameter;
}  // namespace cairn::model

namespace cairn::parallel {

// The placement of a parameter along tp, from its logical axes alone (Megatron-LM): whole heads with their keys, the width of the MLP, and
// the rows of the vocabulary are split as evenly as possible; everything else is replicated. With fewer key heads than ranks, the ranks
// that need the same key head all hold it.
mesh::Placement::How tensor_split(const model::Parameter& parameter, int ranks);

// The same, and replicated where there are too few heads or rows to split.
mesh::Placement::How native_or_replicated(const model::Parameter& parameter, int ranks);

// Whether that is what a placement gives every rank along tp, and nothing is split along other axes. It may be written differently.
bool is_native_split(const model::Parameter& parameter, const mesh::Mesh& mesh, const mesh::Placement& placement);

// Throws bad_input for a model that cannot be split over so many ranks, with the nearest number that works.
void check_tensor_split(const model::Model& model, int ranks);

}  // namespace cairn::parallel
