#include "train/shape_times.h"

#include <fmt/format.h>

#include "data/sample_shape.h"

namespace cairn::train {

void ShapeTimes::add(const data::SampleShape& shape, int64_t samples, double seconds, double data_wait_s) {
  if (shape.frames == 0) return;
  Times& times = by_shape_[{shape.frames, shape.size, samples}];
  ++times.steps;
  times.seconds += seconds;
  times.data_wait_s += data_wait_s;
}

std::string ShapeTimes::table() const {
  if (by_shape_.empty()) return {};
  std::string text = fmt::format("{:>16} {:>8} {:>8} {:>12} {:>12}", "frames x size", "batch", "steps", "ms a step", "ms waiting");
  for (const auto& [shape, times] : by_shape_) {
    const auto& [frames, size, samples] = shape;
    const double per_step = 1e3 / static_cast<double>(times.steps);
    text += fmt::format("\n{:>16} {:>8} {:>8} {:>12.2f} {:>12.2f}", fmt::format("{} x {}", frames, size), samples, times.steps,
                        times.seconds * per_step, times.data_wait_s * per_step);
  }
  return text;
}

}  // namespace cairn::train
