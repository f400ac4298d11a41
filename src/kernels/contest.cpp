#include "kernels/contest.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace cairn::kernels {
namespace {

constexpr int kFirstTries = 2, kMoreTries = 3;
constexpr size_t kFinalists = 3;
constexpr double kMargin = 0.99;

}  // namespace

Contest::Contest(int entrants) : seconds_(static_cast<size_t>(std::max(entrants, 1))), decided_(entrants < 2) {
  if (decided_) return;
  std::vector<int> all;
  for (int who = 0; who < entrants; ++who) all.push_back(who);
  begin_round(all, kFirstTries);
}

// In turn, so that a machine that slows down does so for all.
void Contest::begin_round(const std::vector<int>& who, int tries) {
  for (int i = 0; i < tries; ++i) turns_.insert(turns_.end(), who.begin(), who.end());
  std::reverse(turns_.begin(), turns_.end());
}

Contest::Turn Contest::next() {
  if (turns_.empty()) return {.who = winner_};
  const int who = turns_.back();
  turns_.pop_back();
  ++waiting_;
  return {.who = who, .counts = true};
}

void Contest::took(int who, double seconds) {
  seconds_[static_cast<size_t>(who)].push_back(seconds);
  if (--waiting_ == 0 && turns_.empty()) end_round();
}

// The median of the tries that count.
double Contest::usual(int who) const {
  std::vector<double> counted(seconds_[static_cast<size_t>(who)].begin() + 1, seconds_[static_cast<size_t>(who)].end());
  if (counted.empty()) return std::numeric_limits<double>::infinity();
  const auto middle = counted.begin() + static_cast<std::ptrdiff_t>(counted.size() / 2);
  std::nth_element(counted.begin(), middle, counted.end());
  return *middle;
}

void Contest::end_round() {
  std::vector<int> best;
  for (int who = 0; who < static_cast<int>(seconds_.size()); ++who)
    if (seconds_[static_cast<size_t>(who)].size() >= static_cast<size_t>(kFirstTries + round_ * kMoreTries)) best.push_back(who);
  std::stable_sort(best.begin(), best.end(), [this](int a, int b) { return usual(a) < usual(b); });
  if (round_++ == 0) {
    best.resize(std::min(best.size(), kFinalists));
    if (std::find(best.begin(), best.end(), 0) == best.end()) best.push_back(0);
    begin_round(best, kMoreTries);
    return;
  }
  if (usual(best.front()) < kMargin * usual(0)) winner_ = best.front();
  decided_ = true;
}

}  // namespace cairn::kernels
