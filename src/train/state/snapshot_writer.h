#pragma once
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>

#include "snapshot/snapshot.h"
#include "train/state/host_state.h"

namespace cairn::base {
class Clock;
class Disk;
class Log;
}  // namespace cairn::base

namespace cairn::train {

struct Job;

// Saves the snapshots of a run (snapshot.mode). sync: all ranks of a step group wait until its first rank has written the files. async:
// they wait until the first rank has a copy in host memory; a thread writes the files while training continues. At most one save runs at a
// time. A save that fails is a warning, and the next one is tried as usual; earlier snapshots are untouched. Only rethrow_failure() throws.
// Every rank has one, and all ranks make the same calls.
class SnapshotWriter {
 public:
  SnapshotWriter(Job& job, base::Log& log, const base::Clock& clock, const base::Disk& disk);  // all of which must outlive it
  ~SnapshotWriter();                                                                           // waits for a running save
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  // Saves the job's state into its run directory; does nothing if there is none. Waits for the previous save. Collective.
  void save();
  // Warns if the background save has failed since the last call. Cheap: called in every step.
  void notice_failure();
  // Waits until all snapshots of the step group are on disk. Collective.
  void finish();
  // Throws the failure of the last save, if it failed; for the end of a run.
  void rethrow_failure() const;
  // The seconds that training has waited for saves since the last call.
  double take_held_up_s();

 private:
  void write(const snapshot::Contents& contents);
  void end_write(const std::function<void()>& write);
  void wait_for_the_one_before();

  Job& job_;
  base::Log& log_;
  const base::Clock& clock_;
  const base::Disk& disk_;
  const bool background_;
  HostState host_;
  bool warned_ = false;
  int64_t step_ = 0;            // of the snapshot that is being written
  std::exception_ptr failure_;  // of the last save; null: it succeeded, or there was none
  std::chrono::nanoseconds held_up_{0};
  std::future<void> writing_;  // last, so that its thread ends first
};

}  // namespace cairn::train
