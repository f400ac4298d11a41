#pragma once
#include <cstdint>
#include <string>

#include "base/schema.h"

namespace cairn::sync {

// The recipe's sync.<axis>.* keys that every rule shares.
struct SyncOptions {
  std::string kind = "all_reduce";
  double bucket_mib = 1;
};

// Of the axis `dp`; other axes read the same keys with Schema::in("sync.island").
base::Schema<SyncOptions> sync_schema();

}  // namespace cairn::sync
