#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace cairn::train {

// Finds a rank that holds up the others: its own time of a step (without its waits for other ranks), averaged over the last kWindow steps,
// is kBehind or more above the median of the other ranks.
class RankTimes {
 public:
  static constexpr size_t kWindow = 20;
  static constexpr double kBehind = 0.10;

  struct Slow {
    int rank = 0;
    double behind = 0;  // 0.14: 14 % above the median of the others
  };

  // The seconds of each rank in one step. Ranks with 0 did not measure it.
  void add(std::span<const double> seconds);
  // The slowest rank, if it is behind; nothing before kWindow steps.
  std::optional<Slow> slowest() const;

 private:
  std::deque<std::vector<double>> steps_;
};

}  // namespace cairn::train
