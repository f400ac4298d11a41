// What tests of the tier on disk share: a folder on a disk, both back ends, bytes that tell records and versions apart.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <optional>
#include <ostream>
#include <stdlib.h>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "harness/disk_folder.h"
#include "memory/record_store.h"

namespace cairn::memory {

inline constexpr int64_t kMiB = int64_t{1} << 20;

using harness::DiskFolder;

using BackEnd = DiskIoOptions::BackEnd;

// Tests that run on both back ends, where the kernel has both.
class OnBackEnds : public ::testing::TestWithParam<BackEnd> {
 protected:
  void SetUp() override {
    std::string why_not;
    if (GetParam() == BackEnd::io_uring && make_uring(1, {}, why_not) == nullptr) GTEST_SKIP() << "io_uring: " << why_not;
  }
};
inline std::string name_of_back_end(const ::testing::TestParamInfo<BackEnd>& info) {
  return info.param == BackEnd::io_uring ? "IoUring" : "Threads";
}

// Bytes that tell records, versions and places apart, eight at a time.
inline uint64_t word_of(int64_t record, uint64_t version, size_t i) {
  return (i + 1) * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(record) * 0xbf58476d1ce4e5b9 + version * 0x94d049bb133111eb;
}
inline void fill(std::span<std::byte> bytes, int64_t record, uint64_t version) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = word_of(record, version, i);
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, bytes.size() - i));
  }
}
inline bool holds(std::span<const std::byte> bytes, int64_t record, uint64_t version) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = word_of(record, version, i);
    if (std::memcmp(bytes.data() + i, &word, std::min<size_t>(8, bytes.size() - i)) != 0) return false;
  }
  return true;
}

template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(name(error.kind())) + ": " + error.what();
  }
  return "no error";
}

// Lets a clock go on, by 20 us as often as the machine has time for it.
class Ticking {
 public:
  explicit Ticking(base::VirtualClock& clock)
      : thread_([this, &clock] {
          for (; !over_; std::this_thread::yield()) clock.advance_by(std::chrono::microseconds(20));
        }) {}
  ~Ticking() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

enum class Time : uint8_t { real, stopped };  // stopped: until the test advances it

struct RigOptions {
  Time time = Time::real;
  int64_t disk_bytes = 32 * kMiB, host_bytes = 32 * kMiB;
};

// A store with a pool of its own.
struct Rig {
  Rig(const DiskFolder& folder, const DiskIoOptions& options, const RigOptions& rig = {})
      : pool("memory.host_budget", rig.host_bytes),
        io(std::make_shared<DiskIo>(options, rig.time == Time::real ? static_cast<const base::Clock&>(real) : stopped,
                                    std::vector{pool.memory()})),
        store({.folder = folder.path(), .run_id = "test", .rank = 0, .bytes = rig.disk_bytes}, io, pool, log) {}

  ~Rig() { go_on(); }  // what is on its way needs time
  void go_on() {
    if (!ticking) ticking.emplace(stopped);
  }

  Buffer filled(RecordId id, uint64_t version) {
    Buffer buffer = pool.take(store.bytes(id), base::MemoryUse::other, "filled");
    fill(buffer.bytes(), static_cast<int64_t>(id), version);
    return buffer;
  }
  WriteHandle write(RecordId id, WriteOptions options = {}) { return store.write(id, filled(id, store.version(id) + 1), options); }
  bool has(RecordId id, ReadHandle& read) { return holds(read.wait()->bytes(), static_cast<int64_t>(id), read.version()); }

  base::RealClock real;
  base::VirtualClock stopped;
  std::optional<Ticking> ticking;
  base::Log log = base::Log::capture();
  BufferPool pool;
  std::shared_ptr<DiskIo> io;
  RecordStore store;
};

// Returns once a block is on its way.
inline void wait_until_busy(const DiskIo& io) {
  while (io.counters().depth == 0) std::this_thread::yield();
}

}  // namespace cairn::memory
