// The schemes behind make_scheme.
#pragma once
#include <memory>

#include "federate/coding/scheme.h"

namespace cairn::federate {

// Gradient coding with s late workers; what is missing after a round is repeated `repeat_after` rounds later. 0: nothing is repeated.
struct Repeating {
  int s = 0, repeat_after = 0;
  int64_t jobs = 0;
};
std::unique_ptr<Scheme> make_repeating(const Repeating& options, sync::GradientCode code);

// M-SGC. `rest` codes what is not repeated; null where lambda is the number of workers.
struct Multiplexed {
  int b = 1, w = 2, lambda = 0, workers = 1;
  int64_t jobs = 0;
};
std::unique_ptr<Scheme> make_multiplexed(const Multiplexed& options, std::unique_ptr<sync::GradientCode> rest);

}  // namespace cairn::federate
