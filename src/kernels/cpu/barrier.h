// A spinning barrier for the threads of one parallel region that meet many times within microseconds.
#pragma once
#include <atomic>
#include <thread>

namespace cairn::kernels {

// Writes before wait() are visible to all threads after it. A thread that waits long yields: on a busy machine the thread it waits for may
// need the core.
class Barrier {
 public:
  // `threads`: the number of threads, the same in all calls.
  void wait(int threads) {
    const int round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins < kSpins)
        pause();
      else
        std::this_thread::yield();
    }
  }

 private:
  static constexpr int kSpins = 2000;  // about ten microseconds

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
};

}  // namespace cairn::kernels
