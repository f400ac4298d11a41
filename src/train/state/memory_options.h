// The recipe's snapshot.memory.* keys.
#pragma once
#include <cstdint>

#include "base/schema.h"
#include "elastic/parity_code.h"

namespace cairn::train {

inline constexpr base::EnumName<elastic::ParityKind> kParityNames[] = {
    {elastic::ParityKind::exclusive_or, "xor"}, {elastic::ParityKind::mirror, "mirror"}, {elastic::ParityKind::none, "none"}};

struct MemorySnapshotOptions {
  int64_t every = 0;  // 0: none
  elastic::ParityKind parity = elastic::ParityKind::exclusive_or;
  bool same_host = false;
  double rate = 0;  // MB/s; 0: no limit
};

base::Schema<MemorySnapshotOptions> memory_snapshot_schema();

}  // namespace cairn::train
