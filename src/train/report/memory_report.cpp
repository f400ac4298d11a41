#include "train/report/memory_report.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>

#include "base/json.h"
#include "base/memory_scope.h"
#include "base/text.h"

namespace cairn::train {

// Libtorch's allocators call this for every block that they allocate or free.
struct MemoryReport::Watch final : c10::MemoryReportingInfoBase {
  explicit Watch(const at::Device& watched) : device(watched) {}

  void reportMemoryUsage(void* block, int64_t bytes, size_t allocated, size_t /*reserved*/, c10::Device on) override {
    if (on.type() != device.type()) return;
    const std::lock_guard guard(lock);
    if (bytes < 0) {
      const auto found = blocks.find(block);
      if (found == blocks.end()) return;  // allocated before this object existed
      counts[found->second.purpose] -= found->second.bytes;
      total -= found->second.bytes;
      blocks.erase(found);
      return;
    }
    const size_t purpose = number_of(base::MemoryScope::now());
    if (const auto known = blocks.find(block); known != blocks.end()) {  // freed by another thread
      counts[known->second.purpose] -= known->second.bytes;
      total -= known->second.bytes;
    }
    blocks[block] = {purpose, bytes};
    counts[purpose] += bytes;
    total += bytes;
    if (total <= total_most) return;
    total_most = total;
    counts_most = counts;
    allocated_most = static_cast<int64_t>(allocated);
  }
  bool memoryProfilingEnabled() const override { return true; }

  size_t number_of(const std::string& purpose) {
    const auto [found, fresh] = numbers.emplace(purpose, numbers.size());
    if (fresh) counts.push_back(0);
    return found->second;
  }

  struct Block {
    size_t purpose = 0;
    int64_t bytes = 0;
  };
  at::Device device;
  mutable std::mutex lock;
  std::unordered_map<void*, Block> blocks;
  std::map<std::string, size_t> numbers;  // purpose to its index in counts
  std::vector<int64_t> counts, counts_most;
  int64_t total = 0, total_most = 0, allocated_most = 0;
};

struct MemoryReport::Attached {
  explicit Attached(std::shared_ptr<Watch> watch) : guard(c10::DebugInfoKind::PROFILER_STATE, std::move(watch)) {}
  c10::DebugInfoGuard guard;
};

MemoryReport::MemoryReport(const at::Device& device)
    : watch_(std::make_shared<Watch>(device)), attached_(std::make_unique<Attached>(watch_)) {}
MemoryReport::~MemoryReport() = default;

MemoryReport::Most MemoryReport::most() const {
  const std::lock_guard guard(watch_->lock);
  Most most{.bytes = watch_->total_most, .allocator_bytes = watch_->allocated_most};
  for (const auto& [purpose, number] : watch_->numbers)
    if (number < watch_->counts_most.size() && watch_->counts_most[number] > 0)
      most.lines.push_back({purpose, watch_->counts_most[number]});
  std::stable_sort(most.lines.begin(), most.lines.end(), [](const Line& a, const Line& b) { return a.bytes > b.bytes; });
  return most;
}

std::string MemoryReport::json() const {
  const Most found = most();
  base::OrderedJson purposes = base::OrderedJson::array();
  for (const Line& line : found.lines) purposes.push_back({{"purpose", line.purpose}, {"bytes", line.bytes}});
  return base::compact(base::OrderedJson{
      {"device", watch_->device.str()}, {"bytes", found.bytes}, {"allocator_bytes", found.allocator_bytes}, {"purposes", purposes}});
}

std::string MemoryReport::table() const {
  const Most found = most();
  std::string text = fmt::format("tensors took {} at most (the allocator says {}):\n", base::human_bytes(found.bytes),
                                 base::human_bytes(found.allocator_bytes));
  for (const Line& line : found.lines)
    text += fmt::format("  {:>10} {:>6.1f} %  {}\n", base::human_bytes(line.bytes),
                        100.0 * static_cast<double>(line.bytes) / static_cast<double>(found.bytes), line.purpose);
  return text;
}

}  // namespace cairn::train
