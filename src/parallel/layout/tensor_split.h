#pragma once
#include <string>

#include "mesh/placement.h"

namespace cairn::model {
class Model;
struct Parameter;
}  // namespace cairn::model

namespace cairn::parallel {

// How a parameter lies along tp, from its logical axes alone: whole heads and their keys, the width of the MLP, and the rows of the
// vocabulary are shared out, as evenly as they can be; everything else is on every rank. Where there are fewer key heads than ranks, ranks
// that need the same key head hold it together.
mesh::Placement::How tensor_split(const model::Parameter& parameter, int ranks);

// Refuses what cannot be split over so many ranks, with the nearest number that can.
void check_tensor_split(const model::Model& model, int ranks);

}  // namespace cairn::parallel
