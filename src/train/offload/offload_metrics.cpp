#include "train/offload/offload_metrics.h"

namespace cairn::train {

sync::StepMetrics offload_metrics(mesh::TensorSwapper& swapper) {
  const mesh::TensorSwapper::Since since = swapper.take_since();
  const memory::TierReport report = swapper.report();
  const auto in_tier = [&](memory::TierKind tier) { return static_cast<double>(report.tiers[static_cast<size_t>(tier)].now); };
  return {{"memory_stalls", static_cast<double>(since.counts.waits)},
          {"memory_stall_seconds", since.counts.wait_s},
          {"memory_hits", static_cast<double>(since.counts.hits)},
          {"memory_skipped_reads", static_cast<double>(since.counts.skipped)},
          {"memory_read_bytes", static_cast<double>(since.read_bytes)},
          {"memory_written_bytes", static_cast<double>(since.written_bytes)},
          {"memory_disk_busy_seconds", since.busy_s},
          {"memory_queue_depth", since.depth},
          {"memory_host_bytes", in_tier(memory::TierKind::host)},
          {"memory_disk_bytes", in_tier(memory::TierKind::disk)}};
}

}  // namespace cairn::train
