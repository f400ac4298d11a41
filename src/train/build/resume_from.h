#pragma once
#include <memory>

#include "snapshot/run_lock.h"
#include "train/job.h"
#include "train/start.h"

namespace cairn::train {

// Holds this rank's island directory, so that a run that is resumed while an island still trains on another machine is refused. Null on
// ranks that write nothing, and for the run directory itself, which the command line holds.
std::unique_ptr<snapshot::RunLock> hold_island_directory(const Job& job, const Start& start);

}  // namespace cairn::train
