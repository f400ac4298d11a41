// How a global batch is divided: over replicas, then into micro-batches. Integers only, so all ranks divide alike.
#pragma once
#include <cstdint>
#include <vector>

namespace cairn::data {

// Positions first .. first + count - 1 of a batch.
struct BatchRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const BatchRange&) const = default;
};

// The part of `samples` that falls to one of `replicas`: [replica * samples / replicas, (replica + 1) * samples / replicas).
// Parts follow each other without a gap and differ by one sample at most; with fewer samples than replicas some are empty.
BatchRange replica_range(int64_t samples, int replica, int replicas);

// `samples` in runs of `micro_batch`, the last perhaps shorter; none for an empty share.
std::vector<BatchRange> micro_batches(int64_t samples, int64_t micro_batch);
// So many, as even as can be: the first samples % count have one more.
std::vector<BatchRange> even_micro_batches(int64_t samples, int64_t count);
// By size, and empty ones until there are as many as for `max_local_samples`: all ranks then make as many passes as the one with most
// samples.
std::vector<BatchRange> micro_batches(int64_t samples, int64_t micro_batch, int64_t max_local_samples);

}  // namespace cairn::data
