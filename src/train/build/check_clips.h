#pragma once

namespace cairn::parallel {
struct Plan;
}

namespace cairn::train {

struct Settings;

// Refuses what a sampler that changes the shape of samples does not work with, and batches that do not come in whole groups of batch norm.
void check_clips(const Settings& settings, const parallel::Plan& plan);

}  // namespace cairn::train
