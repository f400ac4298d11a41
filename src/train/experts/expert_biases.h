#pragma once
#include <memory>

#include "train/between_steps.h"

namespace cairn::train {

// For models whose experts have biases; null for others.
std::unique_ptr<BetweenSteps> make_expert_biases(Job& job, comm::World& world);

}  // namespace cairn::train
