#include "memory/disk/disk_model.h"

#include "base/check.h"

namespace cairn::memory {

namespace {
// A thread that waits for the lane wakes up a little late. That time is the disk's, so that the rate holds.
constexpr std::chrono::nanoseconds kLateWake = std::chrono::milliseconds(1);
}  // namespace

void check(const DiskModel& model) {
  if (!(model.read_bytes_per_s >= 0)) base::fail_input("disk.read_bytes_per_s = {}: must not be negative", model.read_bytes_per_s);
  if (!(model.write_bytes_per_s >= 0)) base::fail_input("disk.write_bytes_per_s = {}: must not be negative", model.write_bytes_per_s);
  if (model.latency.count() < 0) base::fail_input("disk.latency = {} ns: must not be negative", model.latency.count());
  if (!(model.jitter >= 0)) base::fail_input("disk.jitter = {}: must not be negative", model.jitter);
}

DiskShaper::DiskShaper(const DiskModel& model, uint64_t seed) : model_(model), random_(base::Random(seed).for_purpose("disk")) {
  check(model);
}

std::chrono::nanoseconds DiskShaper::begin(bool write, int64_t bytes, std::chrono::nanoseconds now) {
  const double rate = write ? model_.write_bytes_per_s : model_.read_bytes_per_s;
  std::chrono::nanoseconds& busy = busy_until_[lane(write)];
  if (now - busy > kLateWake) busy = now;
  if (rate > 0) busy += std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) / rate * 1e9));
  const double spread = 1 + model_.jitter * random_.uniform(blocks_++);
  return busy + std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(model_.latency.count()) * spread));
}

}  // namespace cairn::memory
