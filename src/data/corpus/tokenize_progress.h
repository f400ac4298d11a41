// Shows the progress of tokenizing and the time left.
#pragma once
#include <chrono>
#include <cstdint>

#include "base/progress.h"

namespace cairn::data {

// Shows nothing during the first two seconds.
class TokenizeProgress {
 public:
  TokenizeProgress(base::Terminal& terminal, const base::Clock& clock);  // both must outlive this

  void operator()(int64_t bytes, int64_t of);
  void finish();  // clears the line on a terminal

 private:
  const base::Clock& clock_;
  base::Progress progress_;
  bool begun_ = false;
  std::chrono::nanoseconds start_{0};  // time of the first call, which reported first_ bytes
  int64_t first_ = 0;
  bool shown_ = false;
};

}  // namespace cairn::data
