// The protocol of a save. Collective parts are marked (c).
//
//   sync    collect (c): gather full tensors on the first rank of the step group
//           the first rank writes the files
//           barrier (c): no rank trains on before the snapshot is on disk
//   async   wait for the writer thread of the previous save
//           collect (c), as above
//           the first rank copies live tensors to host memory (HostState) and starts a thread that writes the files
//           the other ranks train on at once
//
// At most one save runs at a time, so HostState can reuse its memory. finish waits for the thread, then for a barrier (c).
//
// A failure of the disk is known to the first rank only, and changes nothing for the others: the first rank warns, and all ranks save again
// at the next interval. snapshot::save leaves earlier snapshots as they are. If the last save of a run has failed, the run ends with that
// error.
#include "train/state/snapshot_writer.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/group.h"
#include "train/build.h"
#include "train/report/run_files.h"
#include "train/state/restore.h"

namespace cairn::train {

SnapshotWriter::SnapshotWriter(Job& job, base::Log& log, const base::Clock& clock, const base::Disk& disk)
    : job_(job),
      log_(log),
      clock_(clock),
      disk_(disk),
      background_(job.config.settings.snapshot.mode == snapshot::SnapshotMode::async && !job.config.out.empty()),
      host_(job.config.device, *job.instruments.memory) {
  if (!background_ || !job.assembly->trivial()) return;  // gathered tensors need no copy
  if (const std::optional<snapshot::Contents> first = collect(job)) host_.make_room(*first);
}

SnapshotWriter::~SnapshotWriter() {
  try {
    if (writing_.valid()) writing_.get();
  } catch (const std::exception& error) {  // the run is ending for another reason
    log_.warn("the snapshot of step {} was not saved: {}", step_, error.what());
  }
}

void SnapshotWriter::save() {
  if (job_.config.out.empty()) return;
  const auto traced = job_.instruments.trace->span("save", "snapshot");
  const std::chrono::nanoseconds began = clock_.now();
  wait_for_the_one_before();
  std::optional<snapshot::Contents> contents = collect(job_);
  step_ = job_.progress.steps_done;
  if (!background_) {
    if (contents) end_write([&] { write(*contents); });
    job_.engine.step_group->barrier("snapshot").wait_host();  // no rank trains on before the snapshot is on disk
  } else if (contents) {
    writing_ = std::async(std::launch::async, [this, copy = host_.take(*std::exchange(contents, std::nullopt))]() mutable {
      write(std::exchange(copy, {}));  // frees gathered tensors when the write ends, not at writing_.get()
    });
  }
  held_up_ += clock_.now() - began;
}

void SnapshotWriter::write(const snapshot::Contents& contents) {
  const auto traced = job_.instruments.trace->span("write", "snapshot");
  restore_run_folder(job_.config.out, job_);
  snapshot::save(job_.config.out.string(), contents, {.newest = job_.config.settings.snapshot.keep}, disk_);
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
    log_.warn("the snapshot of step {} was not saved: {}. Training goes on, and saves again after snapshot.every = {} steps", step_,
              error.what(), job_.config.settings.snapshot.every);
  }
}

void SnapshotWriter::notice_failure() {
  if (writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) end_write([&] { writing_.get(); });
}

void SnapshotWriter::wait_for_the_one_before() {
  notice_failure();
  if (!writing_.valid()) return;
  const std::chrono::nanoseconds began = clock_.now();
  end_write([&] { writing_.get(); });
  const bool in_time = job_.progress.steps_done - step_ < job_.config.settings.snapshot.every;  // the last save may follow early
  if (in_time || std::exchange(warned_, true)) return;
  log_.warn("snapshot of step {} waited {:.1f} s for that of step {}: the disk is slower than snapshot.every", job_.progress.steps_done,
            base::seconds(clock_.now() - began), step_);
}

void SnapshotWriter::finish() {
  if (writing_.valid()) end_write([&] { writing_.get(); });
  if (background_) job_.engine.step_group->barrier("snapshot").wait_host();
}

void SnapshotWriter::rethrow_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

double SnapshotWriter::take_held_up_s() { return base::seconds(std::exchange(held_up_, std::chrono::nanoseconds(0))); }

}  // namespace cairn::train
