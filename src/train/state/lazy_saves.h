#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/memory_tags.h"
#include "sync/sync.h"
#include "train/state/lazy_copier.h"
#include "train/state/part_save.h"

namespace cairn::base {
class Log;
}

namespace cairn::train {

struct Job;

// The lazy saves of a run (snapshot.mode = "lazy") on one rank: the copier that the job's write barrier waits for, one version after the
// other, and what each has cost. Not collective; SnapshotWriter makes ranks agree.
class LazySaves {
 public:
  // `before_copy`: LazyCopier::Parts has it.
  LazySaves(Job& job, base::Log& log, const base::Clock& clock, std::function<void(size_t block)> before_copy = {});
  ~LazySaves();  // waits for the version that is under way, with `cancel` called before
  LazySaves(const LazySaves&) = delete;
  LazySaves& operator=(const LazySaves&) = delete;

  // Saves into files. The version before must be done.
  void begin(PartSave::Parts parts);
  bool done() const { return copier_->done(); }
  void wait() const;                       // for the version that is under way
  void cancel() { cancelled_.request(); }  // the run ends for another reason: votes of ranks that may be gone are not waited for

  // The failure of the version that is done, if it has failed; once for each. Books what it has cost, and says so.
  struct Settled {
    std::exception_ptr failure;
  };
  std::optional<Settled> settle();
  double take_waited_s() { return copier_->take_waited_s(); }
  sync::StepMetrics take_metrics() { return std::exchange(metrics_, {}); }

 private:
  void copy_rest(RankSnapshot& saved, LazyVersion& version);
  at::Tensor room_for(const at::Tensor& tensor, size_t place);
  void warn_of_pressure(const LazyReport& report);

  Job& job_;
  base::Log& log_;
  const base::Clock& clock_;
  SaveCancel cancelled_;
  std::vector<at::Tensor> rooms_;  // host memory for tensors that do not go through the ring
  std::vector<base::BookedMemory> booked_;
  std::chrono::nanoseconds begun_{0};
  int64_t begun_step_ = 0;
  bool warned_ = false;
  sync::StepMetrics metrics_;
  std::unique_ptr<LazyCopier> copier_;  // last: its threads use what is above
};

}  // namespace cairn::train
