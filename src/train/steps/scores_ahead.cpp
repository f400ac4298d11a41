#include "train/steps/scores_ahead.h"

#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "kernels/aten.h"

namespace cairn::train {

ScoresAhead::ScoresAhead(Make make, int64_t ahead, int64_t end, std::chrono::nanoseconds timeout)
    : make_(std::move(make)), ahead_(static_cast<size_t>(ahead)), end_(end), timeout_(timeout), thread_([this] { make_all(); }) {}

ScoresAhead::~ScoresAhead() {
  {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ScoresAhead::make_all() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ended_ || (next_ >= 0 && next_ < end_ && made_.size() < ahead_); });
    if (ended_) return;
    Made one{.batch = next_++};
    const int64_t start = start_;
    working_on_ = one.batch;
    lock.unlock();
    try {
      one.scores = make_(one.batch);
    } catch (...) {
      one.failure = std::current_exception();
    }
    lock.lock();
    working_on_ = -1;
    if (start == start_) made_.push_back(std::move(one));  // else the queue was started anew meanwhile
    changed_.notify_all();
  }
}

at::Tensor ScoresAhead::take(int64_t batch) {
  const base::RealClock clock;
  const std::chrono::nanoseconds begun = clock.now();
  std::unique_lock lock(mutex_);
  if (const int64_t first = !made_.empty() ? made_.front().batch : working_on_ >= 0 ? working_on_ : next_; first != batch) {
    made_.clear();
    next_ = batch;
    ++start_;
  }
  changed_.notify_all();
  if (!changed_.wait_for(lock, timeout_, [&] { return !made_.empty(); }))
    base::fail_input(
        "retrieval.teacher_timeout_s = {:g}: the teacher has not scored batch {} in this time. Use a smaller teacher, or a longer time.",
        base::seconds(timeout_), batch);
  Made one = std::move(made_.front());
  made_.pop_front();
  CAIRN_CHECK(one.batch == batch, "scores of batch {} instead of {}", one.batch, batch);
  lock.unlock();
  changed_.notify_all();
  waited_s_ = base::seconds(clock.now() - begun);
  if (one.failure) std::rethrow_exception(one.failure);
  return one.scores;
}

}  // namespace cairn::train
