// Where the bytes of a run live: on the device, in (pinned) host memory, on disk. Each tier has a budget that is allocated once. Bytes move
// between host and disk in the background, by priority, with deadlines; a client never waits for the disk unless it asks to.
//
//   memory::Tier tier(options, clock, log);
//   memory::RecordId id = tier.disk().add("layers.3", bytes, base::MemoryUse::parameters);
//   memory::Buffer buffer = tier.host().take(bytes, base::MemoryUse::parameters, "layers.3");
//   ... fill buffer.bytes() ...
//   tier.disk().write(id, std::move(buffer));                      // returns at once; the buffer goes back to the pool by itself
//   memory::ReadHandle read = tier.disk().read(id);                // returns at once: prefetch
//   std::shared_ptr<const memory::Buffer> layer = read.wait();     // when it is needed
//
// On a CPU the device tier is a pool of the same memory. On a GPU the caller gives its memory, and copies between it and the host tier.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/files/disk.h"
#include "base/log.h"
#include "memory/buffer_pool.h"
#include "memory/disk/disk_io.h"
#include "memory/record_store.h"
#include "memory/swap_file.h"

namespace cairn::memory {

enum class TierKind : uint8_t { device, host, disk };
inline constexpr int kTierKinds = 3;
std::string_view name(TierKind kind);

struct TierOptions {
  int64_t device_bytes = 0, host_bytes = 0;  // budgets; 0: nothing lives there
  std::span<std::byte> device_memory = {};   // of a GPU; it replaces device_bytes
  PinMemory pin = {};                        // how host memory is pinned for a GPU
  SwapOptions swap = {};                     // swap.bytes = 0: nothing lives on disk
  DiskIoOptions disk = {};
  std::shared_ptr<DiskIo> shared_disk = {};  // of other ranks in this process; it replaces `disk`
};

// What lives where, and what the disk did.
struct TierReport {
  struct Row {
    int64_t budget = 0, now = 0, peak = 0;
    std::array<int64_t, base::kMemoryUses> now_by_use{}, peak_by_use{};
  };
  std::array<Row, kTierKinds> tiers;
  DiskCounters disk;
  StoreCounters store;
};
std::string to_text(const TierReport& report);  // a few lines for a log

// The tiers of one rank.
class Tier {
 public:
  Tier(const TierOptions& options, const base::Clock& clock, base::Log& log, const base::Disk& disk = base::real_disk());

  BufferPool& device() { return device_; }
  BufferPool& host() { return host_; }
  bool has_disk() const { return store_ != nullptr; }
  RecordStore& disk();  // bad_input where options.swap.bytes is 0

  TierReport report() const;

 private:
  BufferPool device_, host_;
  std::shared_ptr<DiskIo> io_;
  std::unique_ptr<RecordStore> store_;
};

// Refuses budgets that do not hold what a run needs of a tier at once, before anything is allocated: "memory.host_budget = 64 MiB: ...".
struct TierNeed {
  TierKind tier = TierKind::host;
  int64_t bytes = 0;
  std::string what;  // "layers.0 and the one after it"
};
void check_budgets(const TierOptions& options, std::span<const TierNeed> needs);

// Refuses a disk that would need `factor` times the time it has: so many bytes in so many seconds of compute.
void check_rate(int64_t bytes_per_step, double step_s, double disk_bytes_per_s, double factor);

}  // namespace cairn::memory
