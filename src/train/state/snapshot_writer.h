#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <optional>
#include <vector>

#include "base/files/throttled_disk.h"
#include "snapshot/remover.h"
#include "train/state/host_state.h"
#include "train/state/lazy_saves.h"
#include "train/state/part_save.h"

namespace cairn::base {
class Clock;
class Disk;
class Log;
}  // namespace cairn::base

namespace cairn::train {

struct Job;

// Saves the snapshots of a run (snapshot.mode). Every rank writes what it has (PartSave). sync: training waits until the snapshot is on
// disk. async: it waits until each rank has a copy in host memory; threads write the files while it continues. lazy: it continues at once,
// and whoever changes a saved tensor waits for its copy (LazySaves). At most one save runs at a time. A save that fails is a warning, and
// the next one is tried as usual; earlier snapshots are untouched. Only rethrow_failure() throws. Every rank has one, and all ranks make
// the same calls.
class SnapshotWriter {
 public:
  // All of which must outlive it. `before_copy`: for tests of lazy saves (LazyCopier::Parts).
  SnapshotWriter(Job& job, base::Log& log, const base::Clock& clock, const base::Disk& disk,
                 std::function<void(size_t block)> before_copy = {});
  ~SnapshotWriter();  // waits for a running save
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  // Saves the job's state into its run directory; does nothing if there is none. Waits for the previous save, or is left out where that
  // still runs, snapshot.on_pressure says so, and it is not the `last` of the run. Collective.
  void save(bool last = false);
  // Warns if the background save has failed since the last call. Cheap: called in every step.
  void notice_failure();
  // Waits until all snapshots of the step group are on disk. Collective.
  void finish();
  // Throws the failure of the last save, if it failed; for the end of a run.
  void rethrow_failure() const;
  // The seconds that training has waited for saves since the last call.
  double take_held_up_s();
  // What the last lazy save has cost, in the step after it was complete.
  sync::StepMetrics take_metrics();

 private:
  std::optional<PartSave::Parts> begin_save(RankSnapshot saved, bool left_out = false);
  void save_lazily(bool last);
  void tell_who_sees();
  void settle_lazy_save();
  void write_now(PartSave& save);
  bool all_see() const { return std::find(sees_.begin(), sees_.end(), false) == sees_.end(); }
  void write_in_background(std::shared_ptr<PartSave> save);
  void all_have_begun();
  void end_write(const std::function<void()>& write);
  void wait_for_the_one_before();

  Job& job_;
  base::Log& log_;
  const base::Clock& clock_;
  const std::optional<base::ThrottledDisk> throttled_;  // with snapshot.write_bytes_per_s
  const base::Disk& disk_;
  const bool background_;
  HostState host_;
  bool warned_ = false;
  bool told_ = false;           // of ranks that do not see the folder
  std::vector<bool> sees_;      // by rank of the step group: the folder of the snapshot that is being written
  int64_t step_ = 0;            // of the snapshot that is being written
  std::exception_ptr failure_;  // of the last save; null: it succeeded, or there was none
  std::chrono::nanoseconds held_up_{0};
  snapshot::Remover remover_;
  std::unique_ptr<LazySaves> lazy_;  // null: another mode
  SaveCancel cancelled_;             // this writer is being destroyed
  std::future<void> writing_;        // last, so that its thread ends first
};

}  // namespace cairn::train
