#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/recipe.h"
#include "train/start.h"

namespace cairn::train {

// The memory of one rank in bytes, by purpose, estimated from the model's cards.
struct Footprint {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;
  int64_t program = 0;                      // libtorch and the rest of the process, or the CUDA context on a GPU
  int64_t gradients_with_activations = -1;  // gradients that exist while all activations exist; -1: all gradients
  int64_t activations_with_gradients = 0;   // activations that exist while all gradients exist (those of one block)
  int64_t total() const {
    const int64_t first = gradients_with_activations < 0 ? gradients : gradients_with_activations;
    return parameters + optimizer + program + std::max(gradients + activations_with_gradients, activations + first);
  }
};

// Describes the run without training or writing anything: model, data, layout, FLOPs of a step, and the memory of a rank beside that of
// this machine.
std::string dry_run(base::Recipe recipe, const Start& start, int ranks);

}  // namespace cairn::train
