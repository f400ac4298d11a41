#include "train/state/memory_options.h"

namespace cairn::train {

base::Schema<MemorySnapshotOptions> memory_snapshot_schema() {
  using O = MemorySnapshotOptions;
  return {"snapshot.memory",
          "Snapshots in host memory, in a process of each node that outlives its ranks. A lost rank or node costs a step or two.",
          {{"every", &O::every, "Steps between two snapshots in memory; 0: none are made.", base::at_least(0)},
           {"parity", &O::parity,
            "What the nodes keep of each other. xor: parity, 1/(nodes - 1) of a node's data. mirror: a copy of the node before. none: a "
            "lost node is not covered.",
            kParityNames},
           {"same_host", &O::same_host, "Whether several nodes may be on one machine, whose loss is then not covered; for tests."},
           {"rate", &O::rate, "The most that each node sends to the others for parity, in MB/s; 0: no limit.", base::at_least(0)}}};
}

}  // namespace cairn::train
