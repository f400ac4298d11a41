#include "data/loader.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "base/check.h"

namespace cairn::data {

struct Loader::Shared {
  struct Made {
    mesh::Batch batch;
    std::exception_ptr failure;
  };

  Make make;
  int64_t end;
  int64_t ahead;
  int64_t taken;  // the step that next() returns next
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Made> ready;
  bool stop = false;
  std::thread thread;

  // Ends after the last step, when told to stop, or after a failure: nothing sensible follows it.
  void work(int64_t first) {
    for (int64_t step = first; step < end; ++step) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stop || static_cast<int64_t>(ready.size()) < ahead; });
        if (stop) return;
      }
      Made made;
      try {
        made.batch = make(step);
      } catch (...) {
        made.failure = std::current_exception();
      }
      const bool failed = made.failure != nullptr;
      {
        const std::lock_guard lock(mutex);
        ready.push_back(std::move(made));
      }
      changed.notify_all();
      if (failed) return;
    }
  }
};

Loader::Loader(Make make, int64_t first, int64_t end, int64_t ahead) : shared_(std::make_unique<Shared>()) {
  CAIRN_CHECK(ahead >= 1 && first <= end, "steps {} to {}, {} ahead", first, end, ahead);
  shared_->make = std::move(make);
  shared_->end = end;
  shared_->ahead = ahead;
  shared_->taken = first;
  shared_->thread = std::thread([shared = shared_.get(), first] { shared->work(first); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
  }
  shared_->changed.notify_all();
  shared_->thread.join();
}

mesh::Batch Loader::next() {
  Shared& shared = *shared_;
  CAIRN_CHECK(shared.taken < shared.end, "asked for step {}, and the loader ends before step {}", shared.taken, shared.end);
  std::unique_lock lock(shared.mutex);
  shared.changed.wait(lock, [&] { return !shared.ready.empty(); });
  if (shared.ready.front().failure) std::rethrow_exception(shared.ready.front().failure);  // stays in front: told again if asked again
  mesh::Batch batch = std::move(shared.ready.front().batch);
  shared.ready.pop_front();
  ++shared.taken;
  lock.unlock();
  shared.changed.notify_all();
  return batch;
}

}  // namespace cairn::data
