// How a global batch is divided: over replicas, then into micro-batches. Integers only, so all ranks divide alike.
#pragma once
#include <cstdint>
#include <vector>

namespace cairn::data {

// Positions first .. first + count - 1 of a batch.
struct Share {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const Share&) const = default;
};

// The part of `samples` that falls to one of `replicas`: [replica * samples / replicas, (replica + 1) * samples / replicas).
// Parts follow each other without a gap and differ by one sample at most; with fewer samples than replicas some are empty.
Share share_of(int64_t samples, int replica, int replicas);

// `samples` in runs of `micro_batch`, the last perhaps shorter; none for an empty share.
std::vector<Share> micro_batches(int64_t samples, int64_t micro_batch);

}  // namespace cairn::data
