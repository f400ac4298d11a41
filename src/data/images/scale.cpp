#include "data/images/scale.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "data/images/image_source.h"

namespace cairn::data {
namespace {

// The pixels that one new pixel is a weighted mean of.
struct ScaledPixel {
  int64_t first = 0;
  std::vector<float> weights;
};

// `size` pixels from the middle of an extent that is scaled by `scale`.
std::vector<ScaledPixel> scaled_axis(int64_t extent, double scale, int64_t size) {
  const double reach = std::max(1.0, 1 / scale);  // of the triangle, in old pixels
  const double offset = (static_cast<double>(extent) * scale - static_cast<double>(size)) / 2;
  std::vector<ScaledPixel> axis(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const double centre = (static_cast<double>(i) + offset + 0.5) / scale - 0.5;
    const auto first = std::max<int64_t>(0, static_cast<int64_t>(std::ceil(centre - reach)));
    const auto last = std::min<int64_t>(extent - 1, static_cast<int64_t>(std::floor(centre + reach)));
    ScaledPixel& pixel = axis[static_cast<size_t>(i)];
    pixel.first = std::min(first, last);
    double sum = 0;
    for (int64_t at = pixel.first; at <= last; ++at) {
      const double weight = std::max(0.0, 1 - std::abs(static_cast<double>(at) - centre) / reach);
      pixel.weights.push_back(static_cast<float>(weight));
      sum += weight;
    }
    if (sum <= 0) pixel.weights.assign(1, 1), sum = 1;
    for (float& weight : pixel.weights) weight = static_cast<float>(static_cast<double>(weight) / sum);
  }
  return axis;
}

}  // namespace

void scale_and_crop(const ImageValues& from, int64_t size, float* into) {
  if (from.height == size && from.width == size) {
    std::ranges::copy(from.values, into);
    return;
  }
  const double scale = static_cast<double>(size) / static_cast<double>(std::min(from.height, from.width));
  const std::vector<ScaledPixel> rows = scaled_axis(from.height, scale, size), columns = scaled_axis(from.width, scale, size);
  std::vector<float> line(static_cast<size_t>(from.width));
  for (int64_t channel = 0; channel < from.channels; ++channel) {
    const float* plane = from.values.data() + channel * from.height * from.width;
    for (const ScaledPixel& row : rows) {
      std::ranges::fill(line, 0.0f);
      for (size_t k = 0; k < row.weights.size(); ++k) {
        const float* source = plane + (row.first + static_cast<int64_t>(k)) * from.width;
        for (size_t x = 0; x < line.size(); ++x) line[x] += row.weights[k] * source[x];
      }
      for (const ScaledPixel& column : columns) {
        float sum = 0;
        for (size_t k = 0; k < column.weights.size(); ++k) sum += column.weights[k] * line[static_cast<size_t>(column.first) + k];
        *into++ = sum;
      }
    }
  }
}

}  // namespace cairn::data
