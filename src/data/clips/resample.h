// Cuts a window out of a frame and resizes it, in one go.
#pragma once
#include <cstdint>
#include <vector>

namespace cairn::data {

// Where the pixels of a resized window lie along one dim of a frame: between `at` and the next one, with the weight of the next one.
struct ResampledAxis {
  std::vector<int32_t> at, next;
  std::vector<float> weight;
};

// `size` pixels from `offset` on, in a frame whose `extent` pixels are resized by `scale`; bilinear, as with pixel centres at halves.
ResampledAxis resampled_axis(int64_t extent, double scale, int64_t offset, int64_t size, bool mirrored = false);

// Writes [y.size, x.size] values (v - 127.5) / 63.75, between -2 and 2.
void resample(const uint8_t* frame, int64_t width, const ResampledAxis& y, const ResampledAxis& x, float* into);

}  // namespace cairn::data
