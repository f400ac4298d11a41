// Splitting work over the threads that libtorch was given.
#pragma once
#include <atomic>
#include <cstdint>

#include <ATen/Parallel.h>
#include <omp.h>

namespace cairn::kernels {

// Calls work(task, thread) for each task in 0 .. tasks-1, on at most at::get_num_threads() threads. A free thread takes the next task.
// Inside a parallel region everything runs on the caller. `work` must not throw.
template <class Work>
void parallel_tasks(int64_t tasks, const Work& work) {
  const int threads = static_cast<int>(std::min<int64_t>(tasks, at::in_parallel_region() ? 1 : at::get_num_threads()));
  if (threads <= 1) {
    for (int64_t task = 0; task < tasks; ++task) work(task, 0);
    return;
  }
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) work(task, thread);
  }
}

// Calls work(begin, end) over rows 0 .. rows-1 in pieces of about `grain` rows, in parallel.
template <class Work>
void parallel_rows(int64_t rows, int64_t grain, const Work& work) {
  grain = std::max<int64_t>(grain, 1);
  parallel_tasks((rows + grain - 1) / grain, [&](int64_t task, int) { work(task * grain, std::min(rows, (task + 1) * grain)); });
}

}  // namespace cairn::kernels
