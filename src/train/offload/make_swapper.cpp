#include "train/offload/make_swapper.h"

#include <algorithm>
#include <cstring>
#include <unistd.h>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/peak_flops.h"
#include "train/flops.h"
#include "train/job.h"

namespace cairn::train {
namespace {

using memory::TierKind;

constexpr int64_t kProbeBytes = int64_t{8} << 20;
constexpr double kStepLeast_s = 0.1;  // disks are not hopeless where a step's transfers take less than so much times slowdown_max

// Swap files carry this: the same for a run that is started again, another for every other run.
std::string run_id(const Job& job) {
  if (job.config.out.empty()) return fmt::format("process-{}-{:x}", ::getpid(), reinterpret_cast<uintptr_t>(&job));
  return fmt::format("{:016x}", base::checksum(std::filesystem::weakly_canonical(job.config.out).string()));
}

memory::TierOptions tier_options(const Job& job, const comm::World& world, const OffloadPlan& plan) {
  const parallel::MemoryOptions& m = job.config.settings.layout.memory;
  memory::TierOptions options{.host_bytes = host_bytes(plan, m)};
  if (plan.of(TierKind::disk).total() == 0) return options;
  if (m.disk_path.empty())
    base::fail_input("memory.disk_path: {} lie on disk, and no folder is given. Set it to a folder on a disk.",
                     base::human_bytes(plan.of(TierKind::disk).total()));
  options.swap = {.folder = m.disk_path, .run_id = run_id(job), .rank = world.rank(), .bytes = disk_bytes(plan, m)};
  constexpr double kMiB = 1 << 20;
  options.disk.model = {.read_bytes_per_s = m.disk_read_mib_s * kMiB,
                        .write_bytes_per_s = m.disk_write_mib_s * kMiB,
                        .latency = std::chrono::nanoseconds(static_cast<int64_t>(m.disk_latency_ms * 1e6))};
  return options;
}

// Bytes per second of a record that is written and read back.
double probe(memory::Tier& tier, const base::Clock& clock) {
  const int64_t bytes = std::min({kProbeBytes, tier.host().budget().largest_free() / 2, tier.disk().file().budget().largest_free()});
  const int64_t whole = (bytes - memory::kSealBytes) / memory::kPageBytes * memory::kPageBytes - memory::kSealBytes;
  if (whole <= 0) return 0;
  const memory::RecordId id = tier.disk().add("probe", whole, base::MemoryUse::other);
  memory::Buffer buffer = tier.host().take(whole, base::MemoryUse::other, "probe");
  std::memset(buffer.bytes().data(), 0, static_cast<size_t>(whole));
  const std::chrono::nanoseconds begun = clock.now();
  tier.disk().write(id, std::move(buffer)).wait();
  (void)tier.disk().read(id).wait();
  const double seconds = base::seconds(clock.now() - begun);
  tier.disk().remove(id);
  return seconds > 0 ? 2 * static_cast<double>(whole) / seconds : 0;
}

// A disk that would take many times the compute of a step.
void check_disk_rate(const Job& job, memory::Tier& tier, const OffloadPlan& plan) {
  const Settings& s = job.config.settings;
  if (s.layout.memory.slowdown_max == 0) return;
  const int64_t bytes = plan.read_per_step + plan.written_per_step;
  const double enough = static_cast<double>(bytes) / (kStepLeast_s * s.layout.memory.slowdown_max);  // whatever a step computes
  double rate = std::min(s.layout.memory.disk_read_mib_s, s.layout.memory.disk_write_mib_s) * 0x1p20;
  constexpr int kTries = 3;  // a busy machine may be slow once
  for (int i = 0; i < kTries && rate < enough && s.layout.memory.disk_read_mib_s == 0; ++i)
    rate = std::max(rate, probe(tier, *job.instruments.wall));
  if (rate == 0 || rate >= enough) return;
  const bool bf16 = s.train.precision == Precision::bf16;
  const double peak = kernels::peak_flops(job.config.device, bf16 ? at::kBFloat16 : at::kFloat, *job.instruments.wall);
  const int64_t length = std::max<int64_t>(1, job.data.length);
  const double tokens = static_cast<double>(s.train.global_batch * s.data.needs().sequences() * length) / job.engine.step_group->size();
  const double compute_s = kStepLeast_s + 3 * forward_flops_per_token(*job.engine.model, length) * tokens / peak;
  memory::check_rate(bytes, compute_s, rate, s.layout.memory.slowdown_max);
}

}  // namespace

std::unique_ptr<mesh::TensorSwapper> make_swapper(Job& job, comm::World& world, const Start&, const OffloadPlan& plan) {
  const parallel::MemoryOptions& m = job.config.settings.layout.memory;
  check_offload(plan, m);
  if (!m.swaps()) return nullptr;
  const memory::TierOptions options = tier_options(job, world, plan);
  if (job.engine.step_group->rank() == 0 && options.swap.bytes > 0)
    memory::remove_swap_files(options.swap.folder, options.swap.run_id, world.log());
  if (job.engine.step_group->size() > 1) job.engine.step_group->barrier("swap files").wait_host();
  auto tier = std::make_unique<memory::Tier>(options, *job.instruments.wall, world.log());
  if (tier->has_disk()) check_disk_rate(job, *tier, plan);
  return std::make_unique<mesh::TensorSwapper>(std::move(tier), *job.instruments.wall);
}

}  // namespace cairn::train
