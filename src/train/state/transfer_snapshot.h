#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "snapshot/snapshot.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

// A snapshot that one rank has and others lack. Identical on all ranks.
struct SnapshotTransfer {
  int source = 0;  // the rank that has it
  int64_t step = 0;
  uint64_t state_checksum = 0;     // of its state.json
  std::vector<int> group_of = {};  // by rank: the first rank of its step group
  std::vector<bool> lacks = {};    // by rank
};

// Copies the snapshot over the world to the run directories of all ranks that lack it, and opens it there. `mine` is the snapshot of a rank
// that has it. The first rank of each step group that lacks it writes; ranks that then do not see the copy, because they are on another
// disk, follow. A crash leaves a whole copy or none. Collective.
snapshot::OpenSnapshot transfer_snapshot(comm::World& world, SnapshotTransfer transfer, std::optional<snapshot::OpenSnapshot> mine,
                                         const std::string& run_dir);

}  // namespace cairn::train
