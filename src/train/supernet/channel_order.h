#pragma once
#include <memory>

#include "train/between_steps.h"

namespace cairn::train {

// Before the subnets of a supernet begin to train, the channels in the middle of each layer are sorted by importance, so that a prefix of
// them is the best part: the L1 norm of what reads a channel, largest first. Parameters, running statistics and momentum move together, and
// the function of the whole network does not change. Null where the recipe does not ask for it.
std::unique_ptr<BetweenSteps> make_channel_order(Job& job, comm::World& world);

}  // namespace cairn::train
