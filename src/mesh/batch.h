#pragma once
#include <cstdint>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace cairn::mesh {

// One named tensor of a batch: tokens, targets, pixels, scores. `shape` says how its first dim relates to the samples.
struct Field {
  enum class Shape {
    per_sample,  // one row per sample
    rows,        // several rows per sample, as many for each, one sample after the other
    ragged,      // several rows per sample, in any number
    whole        // the same for all samples
  };
  at::Tensor tensor = {};
  Shape shape = Shape::per_sample;
};

// What one pass reads: stable sample ids, a weight per sample and named fields. A batch carries its own shape, so shapes may change from
// step to step. A value: copies share the tensors.
struct Batch {
  at::Tensor ids = {};      // int64 [samples]
  at::Tensor weights = {};  // float [samples]; undefined: every sample weighs 1
  std::map<std::string, Field> fields = {};
  double progress = 0;  // of the run: 0 at the first step, 1 after the last. Schedules follow it.
  // Batch normalisation takes its statistics over so many samples at a time; 0: over all of a pass.
  int64_t norm_samples = 0;

  int64_t samples() const { return ids.defined() ? ids.size(0) : 0; }
  const at::Tensor& field(const std::string& name) const;  // must exist
};

// Samples [begin, end) of a batch, as views. A batch with ragged fields cannot be sliced.
Batch slice(const Batch& batch, int64_t begin, int64_t end);

// Copies the batch to another device; asynchronously where it lies in pinned memory.
Batch to_device(const Batch& batch, const at::Device& device);

}  // namespace cairn::mesh
