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
            "sync: training waits until a snapshot is on disk. async: until it is copied to host memory, and goes on while it is written. "
            "lazy: it goes on at once; each piece is copied during forward and backward, before the next update changes it.",
            kSnapshotModeNames},
           {"host_bytes", &O::host_bytes,
            "With mode = lazy: host memory of each rank that copies wait in until they are written, as in \"4GiB\". auto: 1.25 times what "
            "the rank saves, but at most 40 % of the free memory, shared by the ranks. With less than the rank saves, training may wait "
            "for the disk."},
           {"direct_io", &O::direct_io, "Write large tensors past the page cache where the file system can (O_DIRECT)."},
           {"write_bytes_per_s", &O::write_bytes_per_s,
            "The rate at which each rank writes snapshots at most, for file systems that others use too. 0: no limit.", base::at_least(0)},
           {"on_pressure", &O::on_pressure,
            "With mode = lazy, when a save comes while the one before it is still being written: wait for that one, or skip the new one.",
            kOnPressureNames}}};
}

}  // namespace cairn::snapshot
