// The recipe's snapshot.* keys.
#pragma once
#include <cstdint>
#include <string>

#include "base/schema.h"

namespace cairn::snapshot {

struct SnapshotOptions {
  int64_t every = 100;  // 0: only at the end
  int64_t keep = 3;
  bool last = true;
  std::string mode = "sync";
};

base::Schema<SnapshotOptions> snapshot_schema();

}  // namespace cairn::snapshot
