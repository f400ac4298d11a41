// Where the threads of one parallel region wait for each other, many times within microseconds.
#pragma once
#include <atomic>
#include <thread>

namespace cairn::kernels {

// Everything that was written before wait() is seen by everyone after it. A thread that waits long lets others run: on a busy machine the
// one it waits for may be among them.
class Barrier {
 public:
  // `threads`: how many wait, the same for all of them.
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
  static constexpr int kSpins = 2000;  // some ten microseconds

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
