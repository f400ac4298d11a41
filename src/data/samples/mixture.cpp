// A low-discrepancy sequence chooses the streams. Draw d has place x_d = (phase + d * step) mod P with P = 2^30 and step / P near the
// golden ratio, so consecutive places are spread evenly over [0, P) and every place comes up once per period. Stream i owns an interval of
// places in proportion to its weight.
//
// To find how many of the first n draws fell below a border B in O(log) time (without visiting them):
//   #{d < n : x_d < B} = sum_{d<n} floor((x'_d + P) / P) - floor((x'_d + P - B) / P)   with x'_d = phase + d * step,
// and such sums of floors are computed by the Euclidean algorithm (floor_sum).
#include "data/samples/mixture.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/random.h"

namespace cairn::data {
namespace {

constexpr int64_t kPeriod = int64_t{1} << 30;
constexpr int64_t kStep = 663608943;  // odd, so that the whole period is visited; nearest to kPeriod times the golden ratio

// sum of floor((step * i + offset) / kPeriod) for i < n, by the Euclidean algorithm (step and modulus shrink in turn).
int64_t floor_sum(int64_t n, int64_t step, int64_t offset) {
  __extension__ using Wide = __int128;
  Wide sum = 0;
  Wide count = n, modulus = kPeriod, a = step, b = offset;
  for (;;) {
    sum += count * (count - 1) / 2 * (a / modulus) + count * (b / modulus);
    a %= modulus;
    b %= modulus;
    const Wide top = a * count + b;
    if (top < modulus) return static_cast<int64_t>(sum);
    // Count the lattice points below the line by rows instead of columns.
    count = top / modulus;
    b = top % modulus;
    std::swap(modulus, a);
  }
}

// How many of the first n places (n at most one period) are below `border`.
int64_t places_below(int64_t n, int64_t phase, int64_t border) {
  return floor_sum(n, kStep, phase + kPeriod) - floor_sum(n, kStep, phase + kPeriod - border);
}

}  // namespace

Mixture::Mixture(std::span<const double> weights, uint64_t seed) : borders_{0} {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  CAIRN_CHECK(!weights.empty() && sum > 0, "{} weights that sum to {}", weights.size(), sum);
  double before = 0;
  const auto streams = static_cast<int64_t>(weights.size());
  for (int64_t i = 0; i < streams; ++i) {
    CAIRN_CHECK(weights[static_cast<size_t>(i)] > 0, "weight {} is {}", i, weights[static_cast<size_t>(i)]);
    before += weights[static_cast<size_t>(i)];
    const auto border = static_cast<int64_t>(before / sum * static_cast<double>(kPeriod) + 0.5);
    borders_.push_back(
        std::clamp<int64_t>(border, borders_.back() + 1, kPeriod - (streams - 1 - i)));  // each stream has at least one place
  }
  borders_.back() = kPeriod;
  phase_ = static_cast<int64_t>(base::Random(seed).for_purpose("data.mixture").below(0, kPeriod));
}

Mixture::Draw Mixture::at(int64_t draw) const {
  if (borders_.size() == 2) return {0, draw};
  const int64_t place = (kStep * (draw % kPeriod) + phase_) % kPeriod;
  const auto stream = std::upper_bound(borders_.begin(), borders_.end(), place) - borders_.begin() - 1;
  return {stream, drawn(stream, draw)};
}

int64_t Mixture::drawn(int64_t stream, int64_t draws) const {
  if (borders_.size() == 2) return draws;
  const int64_t low = borders_[static_cast<size_t>(stream)];
  const int64_t high = borders_[static_cast<size_t>(stream) + 1];
  const int64_t rest = draws % kPeriod;
  return draws / kPeriod * (high - low) + places_below(rest, phase_, high) - places_below(rest, phase_, low);
}

}  // namespace cairn::data
