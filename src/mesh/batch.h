#pragma once
#include <cstdint>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace cairn::mesh {

// One named part of a batch: tokens, targets, pixels, scores. Says how its first dim relates to the samples.
struct Field {
  enum class Shape { per_sample, ragged, whole };
  at::Tensor tensor = {};
  Shape shape = Shape::per_sample;
};

// What one pass reads: stable 64-bit sample ids, a weight per sample, named fields, and how far the run has come. A batch says
// its own shape, so shapes may change from step to step.
struct Batch {
  at::Tensor ids = {};      // int64 [samples]
  at::Tensor weights = {};  // float [samples]; undefined: every sample weighs 1
  std::map<std::string, Field> fields = {};
  double progress = 0;  // 0 at the first step, 1 after the last; schedules follow it

  int64_t samples() const { return ids.defined() ? ids.size(0) : 0; }
  const at::Tensor& field(const std::string& name) const;
};

// Samples [begin, end) of a batch: views, no copy. Ragged fields are refused.
Batch slice(const Batch& batch, int64_t begin, int64_t end);

// The batch on another device; asynchronous from pinned memory.
Batch to_device(const Batch& batch, const at::Device& device);

}  // namespace cairn::mesh
