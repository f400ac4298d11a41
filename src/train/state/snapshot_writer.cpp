// The protocol of a save. Collective parts are marked (c).
//
//   sync    collect (c): gather full tensors on the first rank of the step group
//           the first rank writes the files
//           barrier (c): no rank trains on before the snapshot is on disk
//   async   wait for the writer thread of the previous save, and rethrow its failure
//           collect (c), as above
//           the first rank copies live tensors to host memory (HostState) and starts a thread that writes the files
//           the other ranks train on at once
//
// At most one save runs at a time, so HostState can reuse its memory. rethrow_failure, called in every step, ends the run on the rank whose
// thread failed; the other ranks then fail in their next collective. finish waits for the thread, then for a barrier (c).
#include "train/state/snapshot_writer.h"

#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "comm/group.h"
#include "train/build.h"
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
  if (!background_) {
    if (contents) write(*contents);
    job_.engine.step_group->barrier("snapshot").wait_host();  // no rank trains on before the snapshot is on disk
  } else if (contents) {
    step_ = contents->step;
    writing_ = std::async(std::launch::async, [this, copy = host_.take(*std::exchange(contents, std::nullopt))]() mutable {
      write(std::exchange(copy, {}));  // frees gathered tensors when the write ends, not at writing_.get()
    });
  }
  held_up_ += clock_.now() - began;
}

void SnapshotWriter::write(const snapshot::Contents& contents) {
  const auto traced = job_.instruments.trace->span("write", "snapshot");
  snapshot::save(job_.config.out.string(), contents, {.newest = job_.config.settings.snapshot.keep}, disk_);
}

void SnapshotWriter::rethrow_failure() {
  if (writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) writing_.get();
}

void SnapshotWriter::wait_for_the_one_before() {
  rethrow_failure();
  if (!writing_.valid()) return;
  const std::chrono::nanoseconds began = clock_.now();
  writing_.get();
  const bool in_time = job_.progress.steps_done - step_ < job_.config.settings.snapshot.every;  // the last save may follow early
  if (in_time || std::exchange(warned_, true)) return;
  log_.warn("snapshot of step {} waited {:.1f} s for that of step {}: the disk is slower than snapshot.every", job_.progress.steps_done,
            base::seconds(clock_.now() - began), step_);
}

void SnapshotWriter::finish() {
  if (!background_) return;
  if (writing_.valid()) writing_.get();
  job_.engine.step_group->barrier("snapshot").wait_host();
}

double SnapshotWriter::take_held_up_s() { return base::seconds(std::exchange(held_up_, std::chrono::nanoseconds(0))); }

}  // namespace cairn::train
