#pragma once
#include <memory>

#include "train/between_steps.h"

namespace cairn::train {

// New homes for experts every few steps, by their load (expert.reshard_every), and the metrics of expert.placement = fssdp; null without
// it.
std::unique_ptr<BetweenSteps> make_expert_homes(Job& job, comm::World& world);

}  // namespace cairn::train
