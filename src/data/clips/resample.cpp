#include "data/clips/resample.h"

#include <algorithm>
#include <cmath>

namespace cairn::data {

ResampledAxis resampled_axis(int64_t extent, double scale, int64_t offset, int64_t size, bool mirrored) {
  ResampledAxis axis;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t pixel = offset + (mirrored ? size - 1 - i : i);
    const double from = std::clamp((static_cast<double>(pixel) + 0.5) / scale - 0.5, 0.0, static_cast<double>(extent - 1));
    const double at = std::floor(from);
    axis.at.push_back(static_cast<int32_t>(at));
    axis.next.push_back(static_cast<int32_t>(std::min(at + 1, static_cast<double>(extent - 1))));
    axis.weight.push_back(static_cast<float>(from - at));
  }
  return axis;
}

void resample(const uint8_t* frame, int64_t width, const ResampledAxis& y, const ResampledAxis& x, float* into) {
  constexpr float kScale = 1 / 63.75f, kShift = -2;
  const size_t columns = x.at.size();
  for (size_t i = 0; i < y.at.size(); ++i, into += columns) {
    const uint8_t *upper = frame + y.at[i] * width, *lower = frame + y.next[i] * width;
    const float down = y.weight[i], up = 1 - down;
    for (size_t j = 0; j < columns; ++j) {
      const auto at = static_cast<size_t>(x.at[j]), next = static_cast<size_t>(x.next[j]);
      const float left = up * static_cast<float>(upper[at]) + down * static_cast<float>(lower[at]);
      const float right = up * static_cast<float>(upper[next]) + down * static_cast<float>(lower[next]);
      into[j] = (left + x.weight[j] * (right - left)) * kScale + kShift;
    }
  }
}

}  // namespace cairn::data
