#pragma once
#include "mesh/named_tensor.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// Sets the parameters of forms that stand in the place of dense weights (model/decoder/weight_form.h), from the weights in `dense`, by name;
// without one, from the starting values that an ordinary model has there. One rank computes those of a form, ranks taking turns, and
// broadcasts them: a decomposition may differ from machine to machine. Collective over the world.
void start_forms(Job& job, const mesh::NamedTensors& dense, comm::World& world);

// The dense weights of those forms, on the CPU and without values: what is loaded in their place.
mesh::NamedTensors dense_weights_of_forms(const Job& job);

}  // namespace cairn::train
