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
#include "model/pass_options.h"

namespace cairn::comm {
class Group;
}

namespace cairn::model {

class LossTerms;
struct ContextLayout;
struct SlicedHeads;
struct Subnet;

// The values of a model's parameters for one call. The pass decides which values these are: live, averaged, perturbed, gathered from other
// ranks or fetched from another memory.
class Weights {
 public:
  virtual ~Weights() = default;
  // The tensor in the shape that the parameter was declared with, or this rank's shard of it. An id with count > 1 gives the neighbours as
  // one taller matrix. Valid until the parameter is released.
  virtual at::Tensor get(mesh::ParamId id) const = 0;
  // How the parameter lies on the mesh.
  virtual const mesh::Placement& placement(mesh::ParamId /*id*/) const { return replicated_; }
  // A hint: these parameters are read next, so a gather or a copy may start.
  virtual void fetch(std::span<const mesh::ParamId> /*ids*/) const {}
  // These parameters are not read until the next fetch. Memory that they share with those of `next` may stay.
  virtual void release(std::span<const mesh::ParamId> /*ids*/, std::span<const mesh::ParamId> /*next*/ = {}) const {}

 private:
  mesh::Placement replicated_;
};

// What a model holds beside its parameters, by name: rotation tables, running statistics.
using Buffers = std::map<std::string, at::Tensor>;

// Which positions a tensor of the KV cache has places for. A tensor without an entry has one for each position.
struct KvPlaces {
  int64_t before = 0;                      // places ahead of the first position, which a block fills itself; with nothing else below
  int64_t window = 0;                      // a ring of the last so many positions; 0: not a ring
  int64_t block = 1, stride = 1;           // otherwise every stride-th block of so many positions
  int64_t count(int64_t capacity) const {  // of a sequence of up to `capacity` positions
    const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    if (window > 0) return capacity < window ? capacity : window;
    return stride * block == 1 ? before + capacity : up(up(capacity, block), stride) * block;
  }
};

// The KV cache of decoding: what the blocks keep of earlier positions. One row of `batch` for each sequence.
struct KvCache {
  int64_t capacity = 0;                            // positions
  std::map<std::string, at::Tensor> tensors = {};  // by position, [batch, capacity, ...]: keys and values of each attention block
  std::map<std::string, at::Tensor> states = {};   // of the whole sequence so far, [batch, ...]
  std::map<std::string, KvPlaces> places = {};     // of the tensors that keep a part of the positions, [batch, count(capacity), ...]

  int64_t places_of(const std::string& tensor, int64_t positions) const {
    const auto found = places.find(tensor);
    return found == places.end() ? positions : found->second.count(positions);
  }
};

// The part of the sequences that this call covers. Passes state batch and length, because a block may see only some of the tokens.
struct Slice {
  int64_t begin = 0;                       // global position of the first token
  int64_t batch = 0, length = 0;           // 0: as the tensors say
  const ContextLayout* context = nullptr;  // context parallelism: which positions this rank holds; null: all
};

// Which gradients this call is for.
struct Needs {
  bool input = true;
  bool weights = true;
  bool as_training = false;  // no gradients, but the values of a pass with gradients: with dropout, in its precision
};

// Everything ambient of one call of a block. Blocks have no state and name no rank: weights, buffers, collectives by mesh axis, random
// numbers and the part of the sequence arrive here. All references are borrowed and outlive the pass.
struct Call {
  const Weights& weights;
  Buffers& buffers;
  const mesh::Axes& axes;
  base::Random random = {};
  Needs needs = {};
  Slice slice = {};
  KvCache* cache = nullptr;                // decoding; null: no cache
  const at::Tensor* token_keys = nullptr;  // int64 [batch, length]: the random key of each token (sample and position); null: none is drawn
  mesh::Gradients* into =
      nullptr;  // takes weight gradients that a block completes in its forward call (chunked cross entropy); may be null
  const PassOptions& options = kDefaultPassOptions;
  bool chunks_logits = false;      // the loss reads logits in chunks, with gradients or without (Objective::reads_chunks)
  SlicedHeads* sliced = nullptr;   // StreamBP: `slice` is one of several slices of the sequences, which share this; null: it is all
  int64_t norm_samples = 0;        // batch normalisation takes statistics over so many samples at a time; 0: over all of the pass
  const Subnet* subnet = nullptr;  // supernets: the part of the model that this call computes; null: all of it
  double loss_weight = 0;          // of the summed loss, and of the terms that blocks add to it
  LossTerms* terms = nullptr;      // takes the loss terms of blocks (loss_terms.h); null: none is made (decoding), or they are made already
  comm::Group* progress = nullptr;  // driven between kernels, so that messages move while blocks compute; null: tp's

  // Whether values are those of training: dropout draws, adapters choose modules.
  bool trains() const { return needs.weights || needs.as_training; }
  // The fp8 linear layers of this call; null: none. Other passes than those of training compute in full precision.
  const Fp8LinearLayers* fp8() const { return trains() ? options.fp8 : nullptr; }
};

}  // namespace cairn::model
