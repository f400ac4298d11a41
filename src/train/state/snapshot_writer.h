#pragma once
#include <chrono>
#include <cstdint>
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

// Saves the snapshots of a run, as snapshot.mode says. sync: all ranks of a company wait until its first has written. async: they wait
// until that has a copy, and a thread writes it while they train on; at most one save is under way. All ranks have one and call it alike.
class SnapshotWriter {
 public:
  SnapshotWriter(Job& job, base::Log& log, const base::Clock& clock, const base::Disk& disk);  // all of which must outlive it
  ~SnapshotWriter();                                                                           // waits for what is under way
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  // The job's state into its run directory; nothing where it has none. Waits for the save before it, and throws what that threw.
  // Collective.
  void save();
  // Throws what a save in the background threw since it was last asked; costs next to nothing, for every step.
  void rethrow_failure();
  // Everything is on disk when it returns, on any rank of the company; throws what kept it from getting there. Collective.
  void finish();
  // How long saves have held up training since this was last asked.
  double take_held_up_s();

 private:
  void write(const snapshot::Contents& contents);
  void wait_for_the_one_before();

  Job& job_;
  base::Log& log_;
  const base::Clock& clock_;
  const base::Disk& disk_;
  const bool background_;
  HostState host_;
  bool warned_ = false;
  int64_t step_ = 0;  // that is being written
  std::chrono::nanoseconds held_up_{0};
  std::future<void> writing_;  // last, so that its thread ends first
};

}  // namespace cairn::train
