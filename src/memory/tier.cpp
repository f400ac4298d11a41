#include "memory/tier.h"

#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/text.h"

namespace cairn::memory {
namespace {

constexpr const char* kBudgetKeys[kTierKinds] = {"memory.device_budget", "memory.host_budget", "memory.disk_budget"};

int64_t budget_of(const TierOptions& options, TierKind kind) {
  if (kind == TierKind::disk) return options.swap.bytes;
  if (kind == TierKind::host) return options.host_bytes;
  return options.device_memory.empty() ? options.device_bytes : static_cast<int64_t>(options.device_memory.size());
}

BufferPool make_device_pool(const TierOptions& options) {
  const char* key = kBudgetKeys[static_cast<size_t>(TierKind::device)];
  return options.device_memory.empty() ? BufferPool(key, options.device_bytes) : BufferPool(key, options.device_memory);
}

TierReport::Row row_of(const Budget& budget) {
  TierReport::Row row{.budget = budget.capacity(), .now = budget.books().total(), .peak = budget.books().total_peak()};
  for (const base::MemoryTags::Bytes& one : budget.books().list()) {
    row.now_by_use[static_cast<size_t>(one.use)] = one.now;
    row.peak_by_use[static_cast<size_t>(one.use)] = one.peak;
  }
  return row;
}

}  // namespace

std::string_view name(TierKind kind) {
  static constexpr std::string_view kNames[kTierKinds] = {"device", "host", "disk"};
  return kNames[static_cast<size_t>(kind)];
}

Tier::Tier(const TierOptions& options, const base::Clock& clock, base::Log& log, const base::Disk& disk)
    : device_(make_device_pool(options)),
      host_(kBudgetKeys[static_cast<size_t>(TierKind::host)], options.host_bytes, options.pin),
      io_(options.shared_disk) {
  if (options.swap.bytes == 0) return;
  if (io_ == nullptr) io_ = std::make_shared<DiskIo>(options.disk, clock, std::vector{host_.memory()}, disk);
  store_ = std::make_unique<RecordStore>(options.swap, io_, host_, log);
  log.info("memory: {} of {} on disk, {}", base::human_bytes(options.swap.bytes), store_->file().path().string(), io_->description());
}

RecordStore& Tier::disk() {
  if (store_ == nullptr) base::fail_input("memory.disk_budget = 0: nothing can live on disk. Set it and memory.disk_path.");
  return *store_;
}

TierReport Tier::report() const {
  TierReport report;
  report.tiers[static_cast<size_t>(TierKind::device)] = row_of(device_.budget());
  report.tiers[static_cast<size_t>(TierKind::host)] = row_of(host_.budget());
  if (store_ == nullptr) return report;
  report.tiers[static_cast<size_t>(TierKind::disk)] = row_of(std::as_const(store_->file()).budget());
  report.disk = io_->counters();
  report.store = store_->counters();
  return report;
}

std::string to_text(const TierReport& report) {
  std::string text;
  for (size_t i = 0; i < kTierKinds; ++i) {
    const TierReport::Row& row = report.tiers[i];
    if (row.budget == 0) continue;
    text += fmt::format("{}: {} of {}, at most {}", name(static_cast<TierKind>(i)), base::human_bytes(row.now),
                        base::human_bytes(row.budget), base::human_bytes(row.peak));
    for (size_t use = 0; use < row.peak_by_use.size(); ++use)
      if (row.peak_by_use[use] > 0)
        text += fmt::format("; {} {}", base::name(static_cast<base::MemoryUse>(use)), base::human_bytes(row.peak_by_use[use]));
    text += "\n";
  }
  for (size_t i = 0; i < kIoClasses; ++i) {
    const DiskCounters::Row &read = report.disk.read[i], &written = report.disk.written[i];
    if (read.bytes + written.bytes == 0) continue;
    text += fmt::format("{}: read {}, written {}\n", name(static_cast<IoClass>(i)), base::human_bytes(read.bytes),
                        base::human_bytes(written.bytes));
  }
  if (report.disk.busy_s > 0)
    text +=
        fmt::format("disk: busy {:.1f} s, mean depth {:.1f}, at most {} waited; {} forwarded, {} waits of which {} stalled for {:.2f} s\n",
                    report.disk.busy_s, report.disk.depth_s / report.disk.busy_s, report.disk.waiting_peak, report.store.forwarded_reads,
                    report.store.ready_waits + report.store.stalls, report.store.stalls, report.store.stall_s);
  return text;
}

void check_budgets(const TierOptions& options, std::span<const TierNeed> needs) {
  for (const TierNeed& need : needs) {
    const int64_t budget = budget_of(options, need.tier);
    if (need.bytes <= budget) continue;
    base::fail_input("{} = {}: {} needs {} at once. Raise it to that, or use smaller pieces.", kBudgetKeys[static_cast<size_t>(need.tier)],
                     base::human_bytes(budget), need.what, base::human_bytes(need.bytes));
  }
}

void check_rate(int64_t bytes_per_step, double step_s, double disk_bytes_per_s, double factor) {
  const double needed = static_cast<double>(bytes_per_step) / step_s;
  if (needed <= factor * disk_bytes_per_s) return;
  base::fail_input("memory on disk: a step of {:.3g} s moves {}: needs {}/s, has {}/s. Keep more in host memory, or take larger batches.",
                   step_s, base::human_bytes(bytes_per_step), base::human_bytes(static_cast<int64_t>(needed)),
                   base::human_bytes(static_cast<int64_t>(disk_bytes_per_s)));
}

}  // namespace cairn::memory
