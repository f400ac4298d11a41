#include "data/corpus/tokenize_progress.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/text.h"

namespace cairn::data {

TokenizeProgress::TokenizeProgress(base::Terminal& terminal, const base::Clock& clock) : clock_(clock), progress_(terminal, clock) {}

void TokenizeProgress::operator()(int64_t bytes, int64_t of) {
  if (!begun_) {
    begun_ = true;
    start_ = clock_.now();
    first_ = bytes;
  }
  const std::chrono::nanoseconds passed = clock_.now() - start_;
  if (passed < std::chrono::seconds(2) || bytes <= first_ || !progress_.due()) return;
  const double per_byte = static_cast<double>(passed.count()) / static_cast<double>(bytes - first_);
  const auto left = std::chrono::nanoseconds(static_cast<int64_t>(per_byte * static_cast<double>(std::max<int64_t>(of - bytes, 0))));
  progress_.update(
      fmt::format("tokenising: {} of {}, {} left", base::human_bytes(bytes), base::human_bytes(of), base::human_duration(left)));
  shown_ = true;
}

void TokenizeProgress::finish() {
  if (shown_) progress_.finish("");
}

}  // namespace cairn::data
