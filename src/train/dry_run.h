#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/recipe.h"
#include "train/start.h"

namespace cairn::train {

// Bytes that one rank will hold, by purpose, read off the model's cards.
struct Footprint {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;
  int64_t program = 0;                      // libtorch and the rest of the process, or what CUDA takes of a GPU
  int64_t gradients_with_activations = -1;  // so much of them is there when all activations are; -1: all
  int64_t activations_with_gradients = 0;   // of a block, which may be at work when all gradients are there
  int64_t total() const {
    const int64_t first = gradients_with_activations < 0 ? gradients : gradients_with_activations;
    return parameters + optimizer + program + std::max(gradients + activations_with_gradients, activations + first);
  }
};

// What would run, without running it or writing anything: model, data, layout, work per step, memory of each rank against this machine's.
std::string dry_run(base::Recipe recipe, const Start& start, int ranks);

}  // namespace cairn::train
