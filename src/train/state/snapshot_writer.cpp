// The protocol of a save. Collective parts are marked (c).
//
//   1. The first rank of the step group makes the staging folder, and tells the others its path, or that there is none (c).
//   2. Every rank writes its part into it, and the first rank commits (PartSave).
//   sync    ... at once, with barriers (c) before and after the commit: no rank trains on before the snapshot is on disk
//   async   ... on a thread, from a copy in host memory (HostState); training goes on at once
//   lazy    ... on threads, piece by piece as they are copied during the next step (LazySaves); ranks vote and commit as with async
//
// At most one save runs at a time, so HostState can reuse its memory. finish waits for the thread, then for a barrier (c).
//
// A failure of the disk changes nothing but this save: the first rank warns, and all ranks save again at the next interval. Earlier
// snapshots stay as they are. If the last save of a run has failed, the run ends with that error.
#include "train/state/snapshot_writer.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/flight/recorder.h"
#include "comm/group.h"
#include "train/build.h"
#include "train/report/run_files.h"
#include "train/state/folder_view.h"
#include "train/state/restore.h"

namespace cairn::train {

SnapshotWriter::SnapshotWriter(Job& job, base::Log& log, const base::Clock& clock, const base::Disk& disk,
                               std::function<void(size_t block)> before_copy)
    : job_(job),
      log_(log),
      clock_(clock),
      throttled_(job.config.settings.snapshot.write_bytes_per_s > 0
                     ? std::optional<base::ThrottledDisk>(std::in_place, disk,
                                                          static_cast<double>(job.config.settings.snapshot.write_bytes_per_s), clock)
                     : std::nullopt),
      disk_(throttled_ ? static_cast<const base::Disk&>(*throttled_) : disk),
      background_(job.config.settings.snapshot.mode == snapshot::SnapshotMode::async && !job.config.out.empty()),
      host_(job.config.device, *job.instruments.memory) {
  if (background_) host_.make_room(collect(job));
  if (job.config.settings.snapshot.mode == snapshot::SnapshotMode::lazy && !job.config.out.empty())
    lazy_ = std::make_unique<LazySaves>(job, log, clock, std::move(before_copy));
}

SnapshotWriter::~SnapshotWriter() {
  cancelled_.request();
  try {
    if (writing_.valid()) writing_.get();
    if (lazy_) {
      lazy_->cancel();
      lazy_->wait();
      if (const auto settled = lazy_->settle(); settled && settled->failure) std::rethrow_exception(settled->failure);
    }
  } catch (const std::exception& error) {  // the run is ending for another reason
    log_.warn("the snapshot of step {} was not saved: {}", step_, error.what());
  }
}

void SnapshotWriter::save(bool last) {
  if (job_.config.out.empty()) return;
  const auto traced = job_.instruments.trace->span("save", "snapshot");
  const comm::ScopedActivity saving(job_.instruments.flight, comm::Activity::saving);
  const std::chrono::nanoseconds began = clock_.now();
  if (lazy_) {
    save_lazily(last);
    held_up_ += clock_.now() - began;
    return;
  }
  wait_for_the_one_before();
  step_ = job_.progress.steps_done;
  RankSnapshot saved = collect(job_);
  if (std::optional<PartSave::Parts> parts = begin_save(std::move(saved))) {
    const bool in_background = background_ && all_see();  // messages are sent by this thread only
    if (!all_see()) tell_who_sees();
    if (in_background) host_.take(parts->saved);
    auto save = std::make_shared<PartSave>(std::move(*parts));
    in_background ? write_in_background(std::move(save)) : write_now(*save);
  }
  held_up_ += clock_.now() - began;
}

void SnapshotWriter::save_lazily(bool last) {
  all_have_begun();
  const bool first = job_.engine.step_group->rank() == 0, skips = job_.config.settings.snapshot.on_pressure == snapshot::OnPressure::skip;
  const int64_t step = job_.progress.steps_done;
  const bool left_out = first && skips && !last && !lazy_->done();  // the first rank is done when all are
  const bool waits = !left_out && !lazy_->done();
  const std::chrono::nanoseconds began = clock_.now();
  if (first && !left_out) lazy_->wait();
  settle_lazy_save();
  if (first && waits && step - step_ >= job_.config.settings.snapshot.every && !std::exchange(warned_, true))
    log_.warn("snapshot of step {} waited {:.1f} s for that of step {}: the disk is slower than snapshot.every", step,
              base::seconds(clock_.now() - began), step_);
  if (left_out)
    log_.warn("the snapshot of step {} is left out: that of step {} is still being written (snapshot.on_pressure)", step, step_);
  if (!left_out) step_ = step;
  std::optional<PartSave::Parts> parts = begin_save(left_out ? RankSnapshot() : collect(job_), left_out);
  if (!parts) return;
  lazy_->wait();  // on a rank that lags behind the first one's failure
  settle_lazy_save();
  if (all_see()) return lazy_->begin(std::move(*parts));
  tell_who_sees();
  PartSave save(std::move(*parts));
  write_now(save);
}

void SnapshotWriter::tell_who_sees() {
  if (std::exchange(told_, true) || job_.engine.step_group->rank() != 0) return;
  log_.warn("{} of {} ranks do not see {}: others write for them{}", std::count(sees_.begin(), sees_.end(), false), sees_.size(),
            job_.config.out.string(), background_ || lazy_ ? ", and training waits for it" : "");
}

// Takes note of the version that has ended since the last call.
void SnapshotWriter::settle_lazy_save() {
  if (const auto settled = lazy_->settle())
    end_write([&] {
      if (settled->failure) std::rethrow_exception(settled->failure);
    });
}

void SnapshotWriter::write_now(PartSave& save) {
  comm::Group& group = *job_.engine.step_group;
  end_write([&] {
    if (sees_[static_cast<size_t>(group.rank())]) save.write();
  });
  if (!all_see()) write_for_others(job_, save, sees_);
  group.barrier("snapshot").wait_host();
  if (group.rank() == 0 && !failure_) end_write([&] { save.commit(); });
  group.barrier("snapshot").wait_host();  // no rank trains on before the snapshot is on disk
}

void SnapshotWriter::write_in_background(std::shared_ptr<PartSave> save) {
  const bool first = job_.engine.step_group->rank() == 0;
  writing_ = std::async(std::launch::async, [this, first, save = std::move(save)]() mutable {
    const auto written = job_.instruments.trace->span("write", "snapshot");
    const std::shared_ptr<PartSave> ends_here = std::exchange(save, nullptr);
    ends_here->write();
    if (first && ends_here->wait_for_votes(cancelled_)) ends_here->commit();
  });
}

// The staging folder, as all ranks know it; nothing where the first rank could not make it.
std::optional<PartSave::Parts> SnapshotWriter::begin_save(RankSnapshot saved, bool left_out) {
  comm::Group& group = *job_.engine.step_group;
  PartSave::Parts parts{.run_dir = job_.config.out.string(),
                        .folder = {},
                        .rank = group.rank(),
                        .ranks = group.size(),
                        .keep = job_.config.settings.snapshot.keep,
                        .staging = nullptr,
                        .saved = std::move(saved),
                        .disk = disk_,
                        .direct = job_.config.settings.snapshot.direct_io,
                        .remover = &remover_,
                        .swapper = job_.engine.store->swapper()};
  if (group.rank() == 0 && !left_out)
    end_write([&] {
      remover_.wait();  // the disk may need the room
      restore_run_folder(job_.config.out, job_);
      parts.staging = std::make_unique<snapshot::StagingFolder>(parts.run_dir, step_, parts.saved.bytes, disk_);
      parts.folder = parts.staging->path().string();
    });
  sees_ = who_sees(group, job_.config.out, parts.folder);
  if (parts.folder.empty()) return std::nullopt;
  return parts;
}

// Runs `write`, or waits for it. A failure of the disk is kept for finish().
void SnapshotWriter::end_write(const std::function<void()>& write) {
  failure_ = nullptr;
  try {
    write();
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::disk) throw;
    failure_ = std::current_exception();
  } catch (const std::filesystem::filesystem_error& error) {
    failure_ = std::make_exception_ptr(Error(Error::Kind::disk, error.what()));
  }
  if (!failure_) return;
  try {
    std::rethrow_exception(failure_);
  } catch (const Error& error) {
    if (job_.engine.step_group->rank() == 0)
      log_.warn("the snapshot of step {} was not saved: {}. Training goes on, and saves again after snapshot.every = {} steps", step_,
                error.what(), job_.config.settings.snapshot.every);
  }
}

void SnapshotWriter::notice_failure() {
  if (lazy_) settle_lazy_save();
  if (writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) end_write([&] { writing_.get(); });
}

void SnapshotWriter::wait_for_the_one_before() {
  if (!background_) return;
  all_have_begun();
  notice_failure();
  if (!writing_.valid()) return;
  const std::chrono::nanoseconds began = clock_.now();
  end_write([&] { writing_.get(); });
  const bool in_time = job_.progress.steps_done - step_ < job_.config.settings.snapshot.every;  // the last save may follow early
  if (in_time || std::exchange(warned_, true)) return;
  log_.warn("snapshot of step {} waited {:.1f} s for that of step {}: the disk is slower than snapshot.every", job_.progress.steps_done,
            base::seconds(clock_.now() - began), step_);
}

// Before this rank waits for its thread, and with it for the votes of the others: those must not wait for this rank.
void SnapshotWriter::all_have_begun() { job_.engine.step_group->barrier("snapshot").wait_host(); }

void SnapshotWriter::finish() {
  if (!background_ && !lazy_) return remover_.wait();
  all_have_begun();
  if (lazy_) {
    lazy_->wait();
    settle_lazy_save();
  }
  if (writing_.valid()) end_write([&] { writing_.get(); });
  remover_.wait();
  job_.engine.step_group->barrier("snapshot").wait_host();
}

void SnapshotWriter::rethrow_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

double SnapshotWriter::take_held_up_s() {
  return base::seconds(std::exchange(held_up_, std::chrono::nanoseconds(0))) + (lazy_ ? lazy_->take_waited_s() : 0);
}

sync::StepMetrics SnapshotWriter::take_metrics() { return lazy_ ? lazy_->take_metrics() : sync::StepMetrics{}; }

}  // namespace cairn::train
