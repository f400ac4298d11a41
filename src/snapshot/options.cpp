#include "snapshot/options.h"

namespace cairn::snapshot {

base::Schema<SnapshotOptions> snapshot_schema() {
  using O = SnapshotOptions;
  return {"snapshot",
          "When the state of a run is saved, and how much of it is kept.",
          {{"every", &O::every, "Steps between two snapshots; 0 saves only at the end.", base::at_least(0)},
           {"keep", &O::keep, "Snapshots kept on disk, the newest ones.", base::at_least(1)},
           {"last", &O::last, "Whether the end of a run is saved; false for runs that are only measured."},
           {"mode", &O::mode,
            "sync: training waits until a snapshot is on disk. async: until it is copied to host memory, and goes on while it is written.",
            kSnapshotModeNames}}};
}

}  // namespace cairn::snapshot
