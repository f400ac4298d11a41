// The schedule of multigrid training (Wu et al., arXiv:1912.00998): which shape the clips of each epoch and of each batch have.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/sample_shape.h"
#include "data/samples/sampler_options.h"

namespace cairn::data {

struct GridShape {
  int64_t frames = 0, size = 0;
  int64_t batch_factor = 1;  // samples of a batch, as a multiple of train.global_batch
  bool operator==(const GridShape&) const = default;
};

// The epochs that one shape of the long cycle lasts.
struct GridPhase {
  int64_t stage = 0;             // of the learning rate, from 0
  GridShape base;                // of the long cycle
  std::vector<GridShape> cycle;  // of consecutive batches: the short cycle, or `base` alone
  int64_t first_epoch = 0, end_epoch = 0;
  double rate_factor = 1;  // of the learning rate
  int64_t fall_epoch = 0;  // from this epoch on it is `later_rate_factor`; end_epoch: it does not fall
  double later_rate_factor = 1;

  double mean_batch_factor() const;
  double rate_factor_at(int64_t epoch) const { return epoch < fall_epoch ? rate_factor : later_rate_factor; }
};

struct GridFacts {
  int64_t frames = 1, size = 1;  // the full shape
  double epochs = 0;             // of training at the full shape (train.epochs)
  SamplerOptions options = {};
};

// Refuses frames that the long cycle does not divide, stages that are not in order, and a run with fewer epochs than
// phases. Phases that rounding leaves without an epoch are left out.
std::vector<GridPhase> multigrid_schedule(const GridFacts& facts);

// The fewest frames and the smallest size of any batch.
SampleShape smallest_shape(const GridFacts& facts);

}  // namespace cairn::data
