// Scales a picture and cuts out its middle.
#pragma once
#include <cstdint>

namespace cairn::data {

struct ImageValues;

// Writes [channels, size, size]: `from` scaled until its shorter side is `size`, and the middle of that. Bilinear between pixel centres;
// where a picture becomes smaller, each value is a mean over the pixels that it stands for (a triangle as wide as two of the new pixels),
// so that fine patterns do not turn into coarse ones. A picture of the right size is copied.
void scale_and_crop(const ImageValues& from, int64_t size, float* into);

}  // namespace cairn::data
