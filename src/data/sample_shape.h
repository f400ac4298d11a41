#pragma once
#include <cstdint>

namespace cairn::data {

// The shape of the samples of one step, where a run changes it (clips). Zeros: the data set's own.
struct SampleShape {
  int64_t frames = 0;
  int64_t size = 0;        // height and width in pixels
  int64_t stride_max = 0;  // frames between two that are kept: drawn from 1 to this; 0: 1
  // Batch normalisation takes its statistics over so many samples at a time; 0: over all of a pass.
  int64_t norm_samples = 0;
  bool operator==(const SampleShape&) const = default;
};

}  // namespace cairn::data
