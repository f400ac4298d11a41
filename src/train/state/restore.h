#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "snapshot/snapshot.h"

namespace cairn::base {
class Log;
}  // namespace cairn::base

namespace cairn::comm {
class Group;
class World;
}  // namespace cairn::comm

namespace cairn::train {

struct Job;

// The contents of a snapshot of the job: parameters, optimizer and sync state by name, the progress of the run, and the files that other
// programs need to open the model. Collective; only the first rank of each step group gets a result. Tensors may be the live ones.
std::optional<snapshot::Contents> collect(Job& job);

// The newest good snapshot to resume from, or nothing. Its step is at most `step_last`, and every step group has a snapshot of that step in
// its own run directory. Collective; refuses ranks of one step group that find different snapshots. If there is no common step although
// some step group has a snapshot later than step `redone_most`, snapshots were lost: the call refuses to start over at step 1.
std::optional<snapshot::OpenSnapshot> find_snapshot(comm::World& world, const comm::Group& step_group, const std::string& run_dir,
                                                    int64_t step_last, int64_t redone_most = std::numeric_limits<int64_t>::max());

// Loads a snapshot into the job. Refuses one of another seed, subset or reference model.
void restore(Job& job, base::Log& log, const snapshot::OpenSnapshot& found, const std::string& run_dir);

}  // namespace cairn::train
