#pragma once
#include "train/step.h"

namespace cairn::parallel {
class GradientFlow;
struct Plan;
}  // namespace cairn::parallel

namespace cairn::train {

class DeviceGraph;
struct Settings;

// Passes on a GPU whose kernels are recorded once and from then on started together (a CUDA graph), so that a small model does not wait for
// the host that starts them one by one. The first few over batches of a shape are made as ever; so are those over shapes that seldom come.
//
// A recording repeats what the device did. What the host decides anew in every pass (what is dropped out, messages to other ranks) it would
// repeat as well: check_recorded refuses that.
using MakeGraph = std::function<std::unique_ptr<DeviceGraph>()>;
Execution recorded(Execution passes, parallel::GradientFlow& flow, MakeGraph make_graph);

void check_recorded(const Settings& settings, const parallel::Plan& plan);

}  // namespace cairn::train
