// Every sample once an epoch, in the order of the corpus.
#pragma once
#include <memory>

#include "data/sampler.h"

namespace cairn::data {

std::unique_ptr<Sampler> make_sequential(const SamplerFacts& facts);

}  // namespace cairn::data
