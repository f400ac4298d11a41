#pragma once
#include "sync/sync.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;
class RunRecorder;

// Evaluates the mean of all islands after the step that was taken last, if the sync rule tracks mergeability there (Sync::tracks_merge).
// The parameters stay as they are, and the time does not count as that of the step. Returns what the step's metrics say about it.
// Collective over all islands.
sync::StepMetrics track_merge(comm::World& world, Job& job, RunRecorder& recorder);

}  // namespace cairn::train
