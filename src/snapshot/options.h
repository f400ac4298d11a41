// The recipe's snapshot.* keys.
#pragma once
#include <cstdint>

#include "base/schema.h"

namespace cairn::snapshot {

// sync: training waits until a snapshot is on disk. async: it waits for a copy in host memory, and continues while that is written.
enum class SnapshotMode { sync, async };
inline constexpr base::EnumName<SnapshotMode> kSnapshotModeNames[] = {{SnapshotMode::sync, "sync"}, {SnapshotMode::async, "async"}};

struct SnapshotOptions {
  int64_t every = 100;  // 0: only at the end
  int64_t keep = 3;
  bool last = true;
  SnapshotMode mode = SnapshotMode::sync;
};

base::Schema<SnapshotOptions> snapshot_schema();

}  // namespace cairn::snapshot
