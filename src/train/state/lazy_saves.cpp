#include "train/state/lazy_saves.h"

#include <algorithm>

#include "base/clock.h"
#include "base/files/disk.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "train/build.h"
#include "train/state/file_sink.h"
#include "train/state/lazy_forecast.h"

namespace cairn::train {
namespace {

constexpr int64_t kSmallBytes = 64 << 10;  // copied inside save: counters, histories, biases of what goes beside the ring

// Sections of RankSnapshot::rest whose large tensors are announced before they change. All others may change at any time: in a forward pass
// (running statistics), when a step is judged, when a sampler hears of losses.
bool is_announced(const std::string& section) { return section == "step"; }

at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().contiguous().view({-1}); }

}  // namespace

LazySaves::LazySaves(Job& job, base::Log& log, const base::Clock& clock, std::function<void(size_t block)> before_copy)
    : job_(job), log_(log), clock_(clock) {
  const snapshot::SnapshotOptions& options = job.config.settings.snapshot;
  const RankSnapshot now = collect(job);
  int64_t bytes = 0, largest = 1;
  const snapshot::PartWriter layout({}, now.part, base::real_disk(), {.open_later = true});
  for (const snapshot::WriteBlock& block : layout.blocks()) {
    bytes += static_cast<int64_t>(block.data.nbytes()) + (options.direct_io ? base::kDirectBytes : 64);
    largest = std::max(largest, static_cast<int64_t>(block.data.nbytes()));
  }
  const int local_ranks = job.config.device.is_cuda() ? 1 : job.engine.step_group->world().size();
  copier_ = std::make_unique<LazyCopier>(LazyCopier::Parts{.device = job.config.device,
                                                           .ring_bytes = ring_bytes_of(options.host_bytes, bytes, largest, local_ranks),
                                                           .memory = *job.instruments.memory,
                                                           .clock = clock,
                                                           .trace = job.instruments.trace.get(),
                                                           .before_copy = std::move(before_copy)});
  job.barrier.attach(copier_.get());
}

LazySaves::~LazySaves() {
  job_.barrier.attach(nullptr);
  copier_.reset();
}

// Host memory like this tensor; the same at the next save.
at::Tensor LazySaves::room_for(const at::Tensor& tensor, size_t place) {
  if (place >= rooms_.size()) rooms_.resize(place + 1);
  at::Tensor& room = rooms_[place];
  if (!room.defined() || room.numel() != tensor.numel() || room.scalar_type() != tensor.scalar_type()) {
    room = at::empty({tensor.numel()}, at::TensorOptions().dtype(tensor.scalar_type()).pinned_memory(tensor.is_cuda()));
    booked_.emplace_back(*job_.instruments.memory, base::MemoryUse::snapshot, static_cast<int64_t>(room.nbytes()));
  }
  return room;
}

// What the first rank writes alone when all have voted: it has to stay as it is until then.
void LazySaves::copy_rest(RankSnapshot& saved, LazyVersion& version) {
  if (!saved.rest) return;
  size_t place = 0;
  for (auto& [section, tensors] : saved.rest->tensors)
    for (mesh::NamedTensor& one : tensors) {
      if (static_cast<int64_t>(one.tensor.nbytes()) <= kSmallBytes || !is_announced(section)) {
        one.tensor = one.tensor.detach().to(at::kCPU, one.tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
        continue;
      }
      const at::Tensor room = room_for(one.tensor, place++);
      version.aside.emplace_back(flat(one.tensor), room);
      one.tensor = room.view(one.tensor.sizes());
    }
}

void LazySaves::begin(PartSave::Parts parts) {
  LazyVersion version{.step = job_.progress.steps_done};
  copy_rest(parts.saved, version);
  auto files = std::make_unique<FileSink>(std::move(parts), cancelled_);
  version.blocks = files->blocks();
  version.sinks.push_back(std::move(files));
  version.touched = [&](const at::Tensor& tensor) { return job_.barrier.touched(tensor); };
  begun_ = clock_.now();
  begun_step_ = version.step;
  copier_->begin(std::move(version));
  job_.barrier.stop_noting();
}

void LazySaves::wait() const {
  while (!copier_->wait_done(std::chrono::minutes(1))) log_.warn("the snapshot of step {} is still being written", begun_step_);
}

std::optional<LazySaves::Settled> LazySaves::settle() {
  const std::optional<LazyReport> report = copier_->take_report();
  if (!report) return std::nullopt;
  if (report->failure) return Settled{report->failure};
  const double mb = static_cast<double>(report->bytes) / 1e6;
  log_.debug(
      "snapshot of step {}: {:.1f} MB of this rank; copied after {:.3f} s, written after {:.3f} s ({:.2f} GB/s), in place after {:.3f} s; "
      "training waited {:.1f} ms for copies; {} of the ring in use",
      report->step, mb, report->copied_s, report->written_s, mb / 1e3 / std::max(report->written_s, 1e-9), report->ended_s,
      report->waited_s * 1e3, base::human_bytes(report->ring_peak));
  metrics_ = {{"snapshot_bytes", static_cast<double>(report->bytes)},
              {"snapshot_copy_s", report->copied_s},
              {"snapshot_write_s", report->written_s},
              {"snapshot_commit_s", report->ended_s},
              {"snapshot_ring_bytes", static_cast<double>(report->ring_peak)}};
  warn_of_pressure(*report);
  return Settled{};
}

void LazySaves::warn_of_pressure(const LazyReport& report) {
  const snapshot::SnapshotOptions& options = job_.config.settings.snapshot;
  const int64_t steps = job_.progress.steps_done - begun_step_;
  if (warned_ || steps <= 0 || options.every <= 0 || job_.engine.step_group->rank() != 0) return;
  const double bytes = static_cast<double>(report.bytes);
  const LazyForecast found = forecast({.state_bytes = bytes,
                                       .ring_bytes = static_cast<double>(copier_->ring_bytes()),
                                       .copy_rate = bytes / std::max(report.copying_s, 1e-9),
                                       .write_rate = bytes / std::max(report.written_s, 1e-9),
                                       .step_s = base::seconds(clock_.now() - begun_) / static_cast<double>(steps)});
  const auto interval = static_cast<double>(options.every), sustainable = static_cast<double>(found.sustainable_steps);
  if (sustainable <= 1.2 * interval) return;
  warned_ = true;
  log_.warn(
      "snapshot.every = {}: writing a snapshot takes {:.1f} s, as long as {} steps: {}. Set snapshot.every to {} or more, or use a faster "
      "disk",
      options.every, found.write_s, found.sustainable_steps,
      options.on_pressure == snapshot::OnPressure::skip ? "some are skipped" : "training waits for the disk", found.sustainable_steps);
}

}  // namespace cairn::train
