// The seam that decides which samples come next.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/subset.h"
#include "mesh/batch.h"
#include "mesh/named_tensor.h"

namespace cairn::data {

// Samples that are drawn from at a rate of their own: one source of a mixture.
struct Stream {
  SampleRange samples;
  double weight = 1;  // its share of the draws, relative to the others'
  bool operator==(const Stream&) const = default;
};

// What a sampler is built from; alike on all ranks.
struct SamplerFacts {
  Subset from;               // the samples to draw from
  int64_t global_batch = 1;  // samples of one step, over all ranks
  int64_t steps = 1;         // steps of the whole run
  uint64_t seed = 0;
  std::vector<Stream> streams = {};  // together all of `from`; none: one stream
};

// Which samples each step trains on: a pure function of the facts, the step and the feedback so far. It is defined for the global
// batch and knows nothing of ranks; shard.h divides it. Any step may be asked for in any order.
class Sampler {
 public:
  virtual ~Sampler() = default;
  // The sample ids of this step's global batch, in order.
  virtual std::vector<int64_t> ids(int64_t step) const = 0;
  // How much of the run lies before this step, 0 to 1: learning-rate schedules follow it.
  virtual double progress(int64_t step) const = 0;
  // Passes over the samples that lie before this step.
  virtual double epoch(int64_t step) const = 0;
  // Where the run stands before this step: how many samples each stream has given. That number alone decides what it gives next.
  virtual std::vector<int64_t> positions(int64_t step) const = 0;
  // What the model made of the samples of a step. Called alike on all ranks, with the whole global batch.
  virtual void feedback(int64_t /*step*/, const mesh::Batch& /*batch*/, const at::Tensor& /*losses_per_sample*/) {}
  // What feedback has left behind, by logical name, for snapshots. The tensors are the sampler's own: a loader writes into them.
  virtual mesh::NamedTensors state() { return {}; }
};

// The sampler called `name` in data.sampler; an unknown name is refused, and the nearest one named.
std::unique_ptr<Sampler> make_sampler(const std::string& name, const SamplerFacts& facts);

// The names make_sampler knows.
std::vector<std::string> sampler_names();

}  // namespace cairn::data
