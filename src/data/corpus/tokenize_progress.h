// Shows how far tokenising is, and how long it will still take.
#pragma once
#include <chrono>
#include <cstdint>

#include "base/progress.h"

namespace cairn::data {

// Nothing is shown of what takes less than two seconds.
class TokenizeProgress {
 public:
  TokenizeProgress(base::Terminal& terminal, const base::Clock& clock);  // both must outlive this

  void operator()(int64_t bytes, int64_t of);
  void finish();  // nothing stays on a screen

 private:
  const base::Clock& clock_;
  base::Progress progress_;
  bool begun_ = false;
  std::chrono::nanoseconds start_{0};  // of the first call, which told of first_ bytes
  int64_t first_ = 0;
  bool shown_ = false;
};

}  // namespace cairn::data
