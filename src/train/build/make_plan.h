#pragma once
#include "parallel/plan.h"

namespace cairn::train {

struct Settings;

// The plan (mesh, sharding, micro-batches, sync rules) that these settings give on this number of ranks. Refuses settings that do not work
// together (check_settings.h).
parallel::Plan make_plan(const Settings& settings, int ranks);

}  // namespace cairn::train
