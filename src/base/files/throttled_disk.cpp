#include "base/files/throttled_disk.h"

#include <algorithm>

#include "base/clock.h"

namespace cairn::base {
namespace {

constexpr double kWriteSeconds = 0.05;  // a longer write is cut short, so that the rate holds over short times too

}  // namespace

ThrottledDisk::ThrottledDisk(const Disk& disk, double bytes_per_s, const Clock& clock)
    : disk_(disk), bytes_per_s_(bytes_per_s), clock_(clock) {}

// Whole pages, so that what follows can be written with direct I/O too.
std::span<const std::byte> ThrottledDisk::part_of(std::span<const std::byte> bytes) const {
  const auto pages = std::max<int64_t>(1, static_cast<int64_t>(bytes_per_s_ * kWriteSeconds) / kDirectBytes);
  return bytes.first(std::min(bytes.size(), static_cast<size_t>(pages * kDirectBytes)));
}

// Returns when this write would have ended on a disk of this rate.
void ThrottledDisk::pay(int64_t written) const {
  if (written <= 0) return;
  const std::chrono::nanoseconds price(static_cast<int64_t>(static_cast<double>(written) / bytes_per_s_ * 1e9));
  // Time that a short write took is part of its own time, so it counts from up to one write before now.
  const std::chrono::nanoseconds slack(static_cast<int64_t>(kWriteSeconds * 1e9));
  std::unique_lock lock(mutex_);
  const std::chrono::nanoseconds until = paid_until_ = std::max(paid_until_, clock_.now() - slack) + price, now = clock_.now();
  if (until > now) time_.wait_for(lock, until - now, [] { return false; });
}

int64_t ThrottledDisk::write(int file, std::span<const std::byte> bytes) const {
  const int64_t written = disk_.write(file, part_of(bytes));
  pay(written);
  return written;
}

int64_t ThrottledDisk::write_at(int file, std::span<const std::byte> bytes, int64_t offset) const {
  const int64_t written = disk_.write_at(file, part_of(bytes), offset);
  pay(written);
  return written;
}

}  // namespace cairn::base
