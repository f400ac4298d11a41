// When the subnets of a supernet train, and how much.
#pragma once
#include "model/supernet/options.h"
#include "optim/lr_schedule.h"

namespace cairn::train {

struct Settings;

// The fraction of the run before the subnets begin to train.
double shrinking_begins(const model::SupernetOptions& options);

// The weight of the subnets' gradients in a step that begins at `progress` with this learning rate, 0 before they begin and 1 at last. On
// the ramp (delayed epsilon-shrinking) weight times rate, the learning rate that the subnets see, rises linearly from 0 to that at the end
// of the ramp. A function of its arguments, so that a resumed run goes on where it was.
double subnet_weight(const model::SupernetOptions& options, const optim::LrSchedule& schedule, double progress, double learning_rate);

// Refuses keys that contradict each other.
void check_shrinking(const Settings& settings);

}  // namespace cairn::train
