// Sparse spectral training in a recipe.
#pragma once
#include <cstdint>

#include "base/schema.h"

namespace cairn::model {

// How pairs of singular vectors are drawn, by their singular values s: p_i is mixed (1/k + s_i / sum s) / 2, multinomial s_i / sum s, or
// uniform 1/k. sequential takes the next pairs in order, and top the largest.
enum class SpectralSampling { mixed, multinomial, uniform, sequential, top };
inline constexpr base::EnumName<SpectralSampling> kSpectralSamplingNames[] = {{SpectralSampling::mixed, "mixed"},
                                                                              {SpectralSampling::multinomial, "multinomial"},
                                                                              {SpectralSampling::uniform, "uniform"},
                                                                              {SpectralSampling::sequential, "sequential"},
                                                                              {SpectralSampling::top, "top"}};

// How a product with U diag(s) V^T is computed.
enum class SpectralPath { automatic, factored, dense };
inline constexpr base::EnumName<SpectralPath> kSpectralPathNames[] = {
    {SpectralPath::automatic, "auto"}, {SpectralPath::factored, "factored"}, {SpectralPath::dense, "dense"}};

// The recipe's model.spectral.* keys.
struct SpectralOptions {
  int64_t rank = 0;  // active pairs of each layer; 0: ordinary weights
  int64_t iteration_steps = 200;
  int64_t round_iterations = 0;  // 0: as many as visit every pair once: ceil(singular values / rank)
  int64_t warmup_steps = 20;
  SpectralSampling sampling = SpectralSampling::mixed;
  bool enhanced = true;
  bool decompose = true;
  double vector_lr_scale = 3;
  double s_lr_scale = 3;
  SpectralPath path = SpectralPath::automatic;
  bool any() const { return rank > 0; }
  bool operator==(const SpectralOptions&) const = default;
};
base::Schema<SpectralOptions> spectral_schema();

}  // namespace cairn::model
