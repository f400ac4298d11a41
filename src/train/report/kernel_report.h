#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace cairn::train {

// Measures the time of each GPU kernel in a step (log.kernels) with PyTorch's profiler. It profiles a few steps after the first ones, when
// libraries have chosen kernels and clocks are stable. The host waits for the device at the end of the profiled steps.
class KernelReport {
 public:
  explicit KernelReport(const at::Device& device) : device_(device) {}
  ~KernelReport();
  KernelReport(const KernelReport&) = delete;
  KernelReport& operator=(const KernelReport&) = delete;

  // Call these around every step.
  void before_step();
  void after_step();

  struct Span {
    std::string kernel;
    int64_t begin_ns = 0, end_ns = 0;
  };
  struct Line {
    std::string kernel;
    int64_t count = 0, ns = 0;
  };
  struct Found {
    int64_t steps = 0;
    int64_t whole_ns = 0, busy_ns = 0;  // from the first kernel to the end of the last, and the part in which a kernel ran
    std::vector<Line> lines = {};       // the longest time first
  };
  static Found tabulate(const std::vector<Span>& spans, int64_t steps);
  static std::string table(const Found& found, size_t lines_most);

  const Found& found() const { return found_; }  // steps = 0: the run ended before the profiled steps

 private:
  static constexpr int64_t kStepsBefore = 20, kSteps = 3;

  at::Device device_;
  int64_t seen_ = 0;
  bool watching_ = false;
  Found found_;
};

}  // namespace cairn::train
