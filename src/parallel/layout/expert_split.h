#pragma once
#include <cstdint>

#include "mesh/placement.h"

namespace cairn::model {
class Model;
struct Parameter;
}  // namespace cairn::model

namespace cairn::parallel {

// The logical axis that counts experts: a parameter with it holds the weights of several experts, stacked.
inline constexpr const char* kExpertAxis = "expert";

// The dim of a parameter that counts experts; -1: it belongs to no expert.
int64_t expert_dim(const model::Parameter& parameter);

// The placement of a parameter along ep: experts as evenly as possible, in the order of their ids; everything else is replicated.
mesh::Placement::How expert_split(const model::Parameter& parameter, int ranks);

// Throws bad_input for a model with fewer experts in a layer than ranks. A model without experts has nothing to place: ranks along ep are
// its replicas.
void check_expert_split(const model::Model& model, int ranks);

}  // namespace cairn::parallel
