#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace cairn::train {

// Which kernels the time of a step on a GPU goes to, watched by PyTorch's profiler over a few steps once kernels are chosen and clocks have
// settled. The steps that are watched wait for the device at their end.
class KernelReport {
 public:
  explicit KernelReport(const at::Device& device) : device_(device) {}
  ~KernelReport();
  KernelReport(const KernelReport&) = delete;
  KernelReport& operator=(const KernelReport&) = delete;

  // Around every step.
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
    int64_t whole_ns = 0, busy_ns = 0;  // from the first kernel to the end of the last, and what of it any was running
    std::vector<Line> lines = {};       // what took the longest first
  };
  static Found tabulate(const std::vector<Span>& spans, int64_t steps);
  static std::string table(const Found& found, size_t lines_most);

  const Found& found() const { return found_; }  // no steps: the run ended before

 private:
  static constexpr int64_t kStepsBefore = 20, kSteps = 3;

  at::Device device_;
  int64_t seen_ = 0;
  bool watching_ = false;
  Found found_;
};

}  // namespace cairn::train
