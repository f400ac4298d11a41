// Every sample once an epoch, in a new random order each time.
#pragma once
#include <memory>

#include "data/sampler.h"

namespace cairn::data {

// The order of an epoch is a permutation keyed by (seed, stream, epoch); nothing is stored. A batch may straddle two epochs.
std::unique_ptr<Sampler> make_shuffled(const SamplerFacts& facts);

}  // namespace cairn::data
