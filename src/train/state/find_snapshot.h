#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
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
  std::set<int64_t> passed_over = {};  // steps whose snapshots the ranks of this step group know to be damaged
  bool one_model = false;              // the snapshots of all islands must have one model (sync::SyncNeeds::one_model)
};

// The newest snapshot to resume from, or nothing if no rank has one. The values of its tensors were not compared with the manifest: whoever
// loads them does that (part_load.h), and searches again where they are damaged. Its step is the same on all ranks. Step groups (islands)
// that lack it receive a copy of another one's into their own run directories. Collective. Refuses ranks of one step group that find
// different snapshots of one step, and without islands also ranks that find different steps.
std::optional<snapshot::OpenSnapshot> find_snapshot(comm::World& world, comm::Group& step_group, const std::string& run_dir,
                                                    const SnapshotSearch& search = {});

}  // namespace cairn::train
