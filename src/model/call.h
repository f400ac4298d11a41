#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "base/random.h"
#include "mesh/axes.h"
#include "mesh/gradients.h"
#include "mesh/placement.h"

namespace cairn::model {

struct ContextSplit;
class Fp8LinearLayers;

// The values of a model's parameters for one call: live, averaged, perturbed, gathered or fetched, as the pass decides.
class Weights {
 public:
  virtual ~Weights() = default;
  // In the shape the parameter was declared with
  // (its part, where the plan splits it); several neighbours come as one taller matrix.
  virtual at::Tensor get(mesh::ParamId id) const = 0;
  // How the parameter lies on the mesh.
  virtual const mesh::Placement& placement(mesh::ParamId /*id*/) const { return replicated_; }
  // These parameters will be asked for next: whoever has to bring them may begin.
  virtual void fetch(std::span<const mesh::ParamId> /*ids*/) const {}
  // They will not be asked for until they are fetched again; `next` will be, so what lies with those may stay.
  virtual void release(std::span<const mesh::ParamId> /*ids*/, std::span<const mesh::ParamId> /*next*/ = {}) const {}

 private:
  mesh::Placement replicated_;
};

// What a model computes once or keeps beside its parameters (rotation tables, running statistics), by name.
using Buffers = std::map<std::string, at::Tensor>;

// What is kept of earlier positions, for decoding.
struct KvCache {
  int64_t capacity = 0;
  std::map<std::string, at::Tensor> tensors = {};  // of each position, [batch, capacity, ...]: keys and values, per attention block
  std::map<std::string, at::Tensor> states = {};   // of all that was read, [batch, ...]
};

// Which positions of the sequence this call covers: `begin` is the global position of the first one. Passes say how many samples and
// positions there are, since blocks may see some of the tokens only.
struct Slice {
  int64_t begin = 0;
  int64_t batch = 0, length = 0;          // 0: as the tensors say
  const ContextSplit* context = nullptr;  // which positions are here, where ranks along cp share the sequence out
  bool ring = true;                       // how they see each other's keys then: by a ring, or gathered
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
  KvCache* cache = nullptr;
  const at::Tensor* token_keys = nullptr;  // int64 [batch, length] here: which sample and position each is; null: nothing is drawn by them
  bool late_sums = true;  // sums over ranks along tp may still be on their way when a block returns, where its readers come later
  const Fp8LinearLayers* fp8 = nullptr;  // which products with weights are in eight bits; null: none
  int64_t loss_chunks = 1;          // logits are made in so many parts, where gradients are asked for, so that they are never there whole
  mesh::Gradients* into = nullptr;  // where weight gradients go that are known before their block's backward pass: those of such logits
  bool overlap = false;             // products of layers that ranks along tp share out run while their inputs or sums are on their way
};

}  // namespace cairn::model
