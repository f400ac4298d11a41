#pragma once
#include <chrono>
#include <cstdint>

#include "base/random.h"

namespace cairn::memory {

// The model of a disk: a plain value, for runs on a disk that others share, for what-if runs and for tests. Nothing set: no limit.
struct DiskModel {
  double read_bytes_per_s = 0, write_bytes_per_s = 0;  // 0: as fast as the disk is
  std::chrono::nanoseconds latency{};                  // of every block; blocks overlap in it
  double jitter = 0;                                   // adds up to this fraction of the latency, uniformly
  bool duplex = false;                                 // reads and writes do not take each other's time

  bool limits() const { return read_bytes_per_s > 0 || write_bytes_per_s > 0 || latency.count() > 0; }
  bool operator==(const DiskModel&) const = default;
};

// Refuses impossible values and names the field.
void check(const DiskModel& model);

// When blocks of a disk like this model are done. A block of B bytes that begins at t keeps its lane busy and is done at
//
//   busy until  = max(t, busy until) + B / rate          lane: reads, writes; one for both unless duplex. Gaps up to 1 ms are not idle
//   done        = busy until + latency * (1 + jitter u)   u uniform in [0, 1), from the seed and the block's number
class DiskShaper {
 public:
  DiskShaper(const DiskModel& model, uint64_t seed);

  // From when on the next block of this direction may begin: not before, so that a more urgent one can still come first.
  std::chrono::nanoseconds idle_from(bool write) const { return busy_until_[lane(write)]; }
  // A block begins now; when it is done.
  std::chrono::nanoseconds begin(bool write, int64_t bytes, std::chrono::nanoseconds now);

 private:
  size_t lane(bool write) const { return model_.duplex && write ? 1 : 0; }

  const DiskModel model_;
  const base::Random random_;
  std::chrono::nanoseconds busy_until_[2] = {std::chrono::hours(-1), std::chrono::hours(-1)};
  uint64_t blocks_ = 0;
};

}  // namespace cairn::memory
