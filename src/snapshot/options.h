// The recipe's snapshot.* keys.
#pragma once
#include <cstdint>
#include <string>

#include "base/schema.h"

namespace cairn::snapshot {

// sync: training waits until a snapshot is on disk. async: it waits for a copy in host memory, and continues while that is written. lazy:
// it continues at once, and each piece is copied before the next update changes it.
enum class SnapshotMode { sync, async, lazy };
inline constexpr base::EnumName<SnapshotMode> kSnapshotModeNames[] = {
    {SnapshotMode::sync, "sync"}, {SnapshotMode::async, "async"}, {SnapshotMode::lazy, "lazy"}};

// What a lazy save does while the one before it is still being written.
enum class OnPressure { wait, skip };
inline constexpr base::EnumName<OnPressure> kOnPressureNames[] = {{OnPressure::wait, "wait"}, {OnPressure::skip, "skip"}};

struct SnapshotOptions {
  int64_t every = 100;  // 0: only at the end
  int64_t keep = 3;
  bool last = true;
  SnapshotMode mode = SnapshotMode::sync;
  std::string host_bytes = "auto";  // of the ring of a lazy save
  bool direct_io = true;
  int64_t write_bytes_per_s = 0;  // 0: no limit
  OnPressure on_pressure = OnPressure::wait;
};

base::Schema<SnapshotOptions> snapshot_schema();

}  // namespace cairn::snapshot
