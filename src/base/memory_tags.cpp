#include "base/memory_tags.h"

#include <fstream>
#include <string>
#include <utility>

namespace cairn::base {
namespace {

// A line like "VmRSS:    1234 kB" of a file of /proc, in bytes.
int64_t proc_bytes(const char* file, std::string_view field) {
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with(field)) continue;
    int64_t value = 0;
    for (const char c : line.substr(field.size()))
      if (c >= '0' && c <= '9') value = value * 10 + (c - '0');
    return value * 1024;
  }
  return 0;
}

}  // namespace

std::string_view name(MemoryUse use) {
  static constexpr std::string_view kNames[kMemoryUses] = {"parameters", "gradients", "optimizer", "activations",
                                                           "buckets",    "snapshot",  "data",      "other"};
  return kNames[static_cast<size_t>(use)];
}

void MemoryTags::Count::add(int64_t bytes) {
  const int64_t value = now.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

void MemoryTags::book(MemoryUse use, int64_t bytes) {
  counts_[static_cast<size_t>(use)].add(bytes);
  total_.add(bytes);
}

MemoryTags::Bytes MemoryTags::of(MemoryUse use) const {
  const Count& count = counts_[static_cast<size_t>(use)];
  return {use, count.now.load(std::memory_order_relaxed), count.peak.load(std::memory_order_relaxed)};
}

std::vector<MemoryTags::Bytes> MemoryTags::list() const {
  std::vector<Bytes> all;
  for (int use = 0; use < kMemoryUses; ++use) all.push_back(of(static_cast<MemoryUse>(use)));
  return all;
}

int64_t MemoryTags::total() const { return total_.now.load(std::memory_order_relaxed); }
int64_t MemoryTags::total_peak() const { return total_.peak.load(std::memory_order_relaxed); }

BookedMemory::BookedMemory(MemoryTags& tags, MemoryUse use, int64_t bytes) : tags_(&tags), use_(use), bytes_(bytes) {
  tags.book(use, bytes);
}

BookedMemory::~BookedMemory() {
  if (tags_ != nullptr) tags_->book(use_, -bytes_);
}

BookedMemory::BookedMemory(BookedMemory&& other) noexcept
    : tags_(std::exchange(other.tags_, nullptr)), use_(other.use_), bytes_(other.bytes_) {}

BookedMemory& BookedMemory::operator=(BookedMemory&& other) noexcept {
  std::swap(tags_, other.tags_);
  std::swap(use_, other.use_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

int64_t resident_bytes() { return proc_bytes("/proc/self/status", "VmRSS:"); }
int64_t peak_resident_bytes() { return proc_bytes("/proc/self/status", "VmHWM:"); }
int64_t machine_bytes() { return proc_bytes("/proc/meminfo", "MemTotal:"); }
int64_t available_bytes() { return proc_bytes("/proc/meminfo", "MemAvailable:"); }

}  // namespace cairn::base
