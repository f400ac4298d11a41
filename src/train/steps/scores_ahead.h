// A side model's scores of batches that are still to come, behind a bounded queue.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include <ATen/core/Tensor.h>

namespace cairn::train {

// Calls `make` for one batch after the other on a thread of its own, at most `ahead` batches before the one that was taken last. A batch
// that is not next (a run was rolled back) starts the queue anew. For one taker.
class ScoresAhead {
 public:
  using Make = std::function<at::Tensor(int64_t batch)>;
  // No batch from `end` on is made.
  ScoresAhead(Make make, int64_t ahead, int64_t end, std::chrono::nanoseconds timeout);
  ~ScoresAhead();
  ScoresAhead(const ScoresAhead&) = delete;
  ScoresAhead& operator=(const ScoresAhead&) = delete;

  // The scores of a batch, with the errors of `make`. After the timeout: Error::bad_input.
  at::Tensor take(int64_t batch);
  double waited_s() const { return waited_s_; }  // for the scores that were taken last

 private:
  struct Made {
    int64_t batch = 0;
    at::Tensor scores = {};
    std::exception_ptr failure = {};
  };
  void make_all();

  const Make make_;
  const size_t ahead_;
  const int64_t end_;
  const std::chrono::nanoseconds timeout_;
  double waited_s_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Made> made_;    // guarded by mutex_, as all below
  int64_t next_ = -1;        // the batch that is made next; -1: nobody has asked yet
  int64_t working_on_ = -1;  // the batch that is being made; -1: none
  int64_t start_ = 0;        // how often the queue was started anew
  bool ended_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace cairn::train
