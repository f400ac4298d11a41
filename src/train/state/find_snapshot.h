#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "snapshot/snapshot.h"

namespace cairn::comm {
class Group;
class World;
}  // namespace cairn::comm

namespace cairn::train {

struct SnapshotSearch {
  int64_t step_last = std::numeric_limits<int64_t>::max();  // snapshots of later steps are ignored
  // Islands go back at most so many steps behind the furthest of them to a step that all have a snapshot of.
  int64_t max_apart = std::numeric_limits<int64_t>::max();
  bool one_model = false;  // the snapshots of all islands must have one model (sync::SyncNeeds::one_model)
};

// The newest good snapshot to resume from, or nothing if no rank has one. Its step is the same on all ranks. Step groups (islands) that
// lack it receive a copy of another one's into their own run directories. Collective. Refuses ranks of one step group that find different
// snapshots of one step, and without islands also ranks that find different steps.
std::optional<snapshot::OpenSnapshot> find_snapshot(comm::World& world, const comm::Group& step_group, const std::string& run_dir,
                                                    const SnapshotSearch& search = {});

}  // namespace cairn::train
