// The seam that decides which samples each step trains on.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/subset.h"
#include "mesh/batch.h"
#include "mesh/named_tensor.h"

namespace cairn::data {

// One source of a weighted mixture: samples that are drawn at a rate of their own.
struct Stream {
  SampleRange samples;
  double weight = 1;  // relative to the other streams
  bool operator==(const Stream&) const = default;
};

// What a sampler is built from; the same on all ranks.
struct SamplerFacts {
  Subset from;               // the samples to draw from
  int64_t global_batch = 1;  // samples of one step, over all ranks
  int64_t steps = 1;         // steps of the whole run
  uint64_t seed = 0;
  std::vector<Stream> streams = {};  // together all of `from`; empty: one stream
};

// A pure function of facts, step and feedback so far. It is defined for the global batch and knows nothing of ranks; batch_split.h divides
// the batch. Steps may be asked for in any order. Const methods are thread-safe: a loader calls them ahead of time.
class Sampler {
 public:
  virtual ~Sampler() = default;
  // The sample ids of this step's global batch, in order.
  virtual std::vector<int64_t> ids(int64_t step) const = 0;
  // The fraction of the run before this step, 0 to 1. Learning-rate schedules follow it.
  virtual double progress(int64_t step) const = 0;
  // Epochs completed before this step, as a fraction.
  virtual double epoch(int64_t step) const = 0;
  // The samples drawn from each stream before this step. These numbers alone decide what comes next.
  virtual std::vector<int64_t> positions(int64_t step) const = 0;
  // The losses of the samples of a step. Called on all ranks with the same global batch.
  virtual void feedback(int64_t /*step*/, const mesh::Batch& /*batch*/, const at::Tensor& /*losses_per_sample*/) {}
  // State that depends on feedback, by logical name, for snapshots. The tensors are the sampler's own: restoring writes into them.
  virtual mesh::NamedTensors state() { return {}; }
};

// The sampler called `name` in data.sampler. Refuses an unknown name and suggests the nearest. The list is in samples/samplers.cpp.
std::unique_ptr<Sampler> make_sampler(const std::string& name, const SamplerFacts& facts);

// The names make_sampler knows.
std::vector<std::string> sampler_names();

}  // namespace cairn::data
