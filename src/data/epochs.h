// The arithmetic that samplers share which take every sample once an epoch.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "data/sampler.h"

namespace cairn::data {

// Draws are numbered over the whole run: step s takes draws [s * global_batch, (s + 1) * global_batch); draw d is place
// d % count of epoch d / count.
struct Epochs {
  SamplerFacts facts;

  explicit Epochs(const SamplerFacts& of) : facts(of) {
    CAIRN_CHECK(facts.from.size() >= 1 && facts.global_batch >= 1 && facts.steps >= 1, "{} samples, global batch {}, {} steps",
                facts.from.size(), facts.global_batch, facts.steps);
  }

  int64_t first_draw(int64_t step) const { return step * facts.global_batch; }
  double epoch(int64_t step) const { return static_cast<double>(first_draw(step)) / static_cast<double>(facts.from.size()); }
  double progress(int64_t step) const { return std::clamp(static_cast<double>(step) / static_cast<double>(facts.steps), 0.0, 1.0); }
};

}  // namespace cairn::data
