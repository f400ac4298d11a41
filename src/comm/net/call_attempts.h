#pragma once
#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include <fmt/format.h>

#include "base/random.h"

namespace cairn::comm {

// Repeated calls to one address: how long to wait before the next one (exponential back-off with jitter), and what came of the others.
class CallAttempts {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  // `seed` differs between processes, so that callers that were turned away together do not come back together.
  CallAttempts(uint64_t seed, Nanoseconds first, Nanoseconds most) : random_(seed), first_(first), most_(most) {}

  // Notes why the last call failed. Returns the pause before the next one: 0.5 to 1.5 times min(most, first 1.5^n).
  Nanoseconds failed(const std::string& why) {
    if (reasons_.size() < kReasonsMax || reasons_.contains(why)) ++reasons_[why];
    const double base = std::min(static_cast<double>(most_.count()), static_cast<double>(first_.count()) * growth_);
    growth_ = std::min(growth_ * 1.5, 1e6);
    return Nanoseconds(static_cast<int64_t>(base * (0.5 + random_.uniform(count_++))));
  }

  // "7 calls: Connection refused (5), its connection was closed (2)"; empty before the first one has failed.
  std::string summary() const {
    if (count_ == 0) return "";
    std::string text = fmt::format("{} call{}: ", count_, count_ == 1 ? "" : "s");
    for (const auto& [why, times] : reasons_) text += fmt::format("{}{} ({})", why == reasons_.begin()->first ? "" : ", ", why, times);
    return text;
  }

 private:
  static constexpr size_t kReasonsMax = 8;
  base::Random random_;
  Nanoseconds first_, most_;
  double growth_ = 1;
  uint64_t count_ = 0;
  std::map<std::string, int> reasons_;
};

}  // namespace cairn::comm
