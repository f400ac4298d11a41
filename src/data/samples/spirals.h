// Points on interleaved spirals: a small labelled data set that every checkout has.
#pragma once
#include <cstdint>
#include <memory>

#include "data/dataset.h"

namespace cairn::data {

struct SpiralOptions {
  int64_t samples = 3000;
  int64_t classes = 3;
  double noise = 0.05;
  double held_out_fraction = 0.1;  // the last samples; labels cycle with the id, so both parts hold all classes
  uint64_t seed = 1;
};

// Fields "features" [samples, 2] and "labels" [samples]; sample i depends on (seed, i) only.
std::unique_ptr<Dataset> make_spirals(const SpiralOptions& options);

}  // namespace cairn::data
