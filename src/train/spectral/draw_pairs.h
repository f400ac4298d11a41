#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "model/decoder/spectral_options.h"

namespace cairn::train {

// Draws `rank` distinct pairs of a layer with these singular values, in ascending order: the successive draws of a multinomial without
// replacement (exponential races, Efraimidis and Spirakis 2006). `ids`: the number that each pair has had since the last decomposition, for
// sequential draws. `iteration` counts within the round.
std::vector<int64_t> draw_pairs(model::SpectralSampling how, std::span<const float> values, std::span<const int64_t> ids, int64_t rank,
                                int64_t iteration, const base::Random& random);

}  // namespace cairn::train
