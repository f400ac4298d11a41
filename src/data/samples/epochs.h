// The arithmetic of samplers that visit every sample once per epoch.
#pragma once
#include <cstdint>
#include <vector>

#include "data/sampler.h"
#include "data/samples/mixture.h"

namespace cairn::data {

// Draws are numbered over the whole run: step s takes draws [s * global_batch, (s + 1) * global_batch). The mixture makes draw d the n-th
// draw of a stream, which is place n % size of that stream's epoch n / size.
class Epochs {
 public:
  explicit Epochs(SamplerFacts facts);

  const SamplerFacts& facts() const { return facts_; }
  int64_t steps() const { return facts_.steps; }  // ceil(epochs * samples / global_batch) where epochs decide
  int64_t first_draw(int64_t step) const { return step * facts_.global_batch; }
  double epoch(int64_t step) const;
  double progress(int64_t step) const;
  std::vector<int64_t> positions(int64_t step) const;

  struct Place {
    int64_t stream = 0;
    int64_t epoch = 0;
    int64_t place = 0;
  };
  Place place(int64_t draw) const;
  int64_t streams() const { return static_cast<int64_t>(streams_.size()); }
  int64_t size(int64_t stream) const { return streams_[static_cast<size_t>(stream)].size(); }
  int64_t id(int64_t stream, int64_t place) const { return streams_[static_cast<size_t>(stream)].id(place); }

 private:
  SamplerFacts facts_;
  std::vector<Subset> streams_;  // none of them empty
  Mixture mixture_;
};

// Refuses weighted mixtures, for samplers that draw equally from all samples.
void check_one_pool(const SamplerFacts& facts, const char* sampler);

}  // namespace cairn::data
