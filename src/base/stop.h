#pragma once
#include <atomic>

namespace cairn::base {

// A request that a run save and stop at the next step. May come from a signal handler (request() is async-signal-safe), a test or another
// thread.
class Stop {
 public:
  void request(int signal = 0) noexcept {
    signal_.store(signal, std::memory_order_relaxed);
    requested_.store(true, std::memory_order_release);
  }
  bool requested() const noexcept { return requested_.load(std::memory_order_acquire); }
  int signal() const noexcept { return signal_.load(std::memory_order_relaxed); }  // the signal that asked, or 0

 private:
  std::atomic<bool> requested_{false};
  std::atomic<int> signal_{0};
  static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);
};

}  // namespace cairn::base
