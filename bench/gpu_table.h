#pragma once
#include <string>
#include <vector>

#include "bench/gpu_runs.h"

namespace cairn::study {

// The runs of a case side by side, what their time went to before the first step's end, and how the losses compare.
std::string gpu_table(const GpuCase& one, const std::vector<GpuRun>& runs, const GpuCeiling& ceiling);

}  // namespace cairn::study
