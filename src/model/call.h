#pragma once
#include <cstdint>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "base/random.h"
#include "mesh/axes.h"
#include "mesh/gradients.h"

namespace cairn::model {

// The values of a model's parameters for one call: live, averaged, perturbed, gathered or fetched, as the pass decides.
class Weights {
 public:
  virtual ~Weights() = default;
  // In the shape the parameter was declared with; several neighbours come as one taller matrix.
  virtual at::Tensor get(mesh::ParamId id) const = 0;
};

// What a model computes once or keeps beside its parameters (rotation tables, running statistics), by name.
using Buffers = std::map<std::string, at::Tensor>;

// Keys and values of earlier positions, per attention block, for decoding. Each tensor is [batch, capacity, kv_heads, head_dim].
struct Cache {
  int64_t capacity = 0;
  std::map<std::string, at::Tensor> tensors = {};
};

// Which positions of the sequence this call covers: `begin` is the global position of the first one.
struct Slice {
  int64_t begin = 0;
};

// Which gradients this call is for.
struct Needs {
  bool input = true;
  bool weights = true;
};

// Everything ambient arrives in the call: weights, buffers, collectives by axis (never by rank), random numbers, the part of the sequence.
struct Call {
  const Weights& weights;
  Buffers& buffers;
  const mesh::Axes& axes;
  base::Random random = {};
  Needs needs = {};
  Slice slice = {};
  Cache* cache = nullptr;
};

}  // namespace cairn::model
