// Refuses combinations of settings that do not work. Most rules are data: the limits that step methods and model kinds declare, and the
// pairs of features in features.cpp.
#pragma once
#include <c10/core/Device.h>

#include "train/features.h"

namespace cairn::model {
class Model;
}

namespace cairn::train {

// Refuses settings that do not work together under this plan, with the reason and what to do instead.
void check_settings(const Settings& settings, const parallel::Plan& plan);
// The checks that need the size of micro-batches. `local_samples`: the most samples that any rank has in a step.
void check_accumulation(const Settings& settings, const parallel::Plan& plan, int64_t local_samples);
// Refuses settings that do not work with blocks on DTensors, where the plan places parameters so (parallel/dtensor_block.h).
void check_placements(const Settings& settings, const model::Model& model, const parallel::Plan& plan);
// Refuses settings that this device cannot do.
void check_device(const Settings& settings, const at::Device& device);
// Refuses reports that this device cannot make, or that exclude each other.
void check_instruments(const Settings& settings, const at::Device& device);

// Whether check_settings would accept this feature in this run.
bool is_allowed(Feature feature, const Settings& settings, const parallel::Plan& plan);

}  // namespace cairn::train
