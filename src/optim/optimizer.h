// The seam of the inner update rules. One optimizer updates a list of pieces; a piece is a parameter, or a shard of one.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/random.h"
#include "mesh/named_tensor.h"
#include "optim/state_memory.h"
#include "optim/tensor_shard.h"

namespace cairn::optim {

struct OptimOptions;

// A parameter, or a shard of one, with its gradient. The tensors belong to the caller; the optimizer writes into `parameter`. A rule
// whose granularity (needs.h) is matrices gets pieces in their own shape; other rules accept flat slices.
struct ParameterPiece {
  std::string name;
  at::Tensor parameter;
  at::Tensor gradient;
  bool decays = true;           // weight decay applies
  bool hidden = false;          // a matrix from hidden states to hidden states: no embedding table, head, gain or bias
  bool fan_in_fan_out = false;  // the matrix is stored [in, out] instead of [out, in]
  bool on_hyperboloid = false;  // its rows are points of the hyperboloid, and must stay there
  // The random numbers of stochastic rounding: element i uses number first_index + i of the parameter, or of the tensor-parallel shard
  // `shard` where its elements do not follow each other in the parameter (0: they do).
  int64_t first_index = 0;
  int64_t shard = 0;
  int64_t group = 0;  // neighbours of one group are updated together, and their state lies together (state_memory.h)
  // Who holds the rest of it, for rules whose granularity is matrices. Null: it is all of the parameter.
  std::shared_ptr<const TensorShard> split = nullptr;
};

// The facts of one update. The effective gradient is gradient * gradient_scale * *gradient_factor. The factor is one element on the
// device (the clipping factor), so that clipping costs no extra pass and no wait for the device.
struct UpdateFacts {
  int64_t step = 1;  // counts updates from 1; skipped updates do not count
  double learning_rate = 0;
  double gradient_scale = 1;
  const at::Tensor* gradient_factor = nullptr;  // null: 1
  // The random numbers of stochastic rounding for parameters in bf16; a piece uses those of its name and of `step`. Null: round to nearest.
  const base::Random* rounding = nullptr;
  // Where an update is captured in a CUDA graph: the result of Optimizer::step_scalars on the device. The kernels then read step,
  // learning_rate and the rounding seed from there when the graph is replayed. Null: they are taken from this struct.
  const at::Tensor* step_scalars = nullptr;
};

// One update rule over a list of pieces. Calling update(i) is the moment at which piece i may change, so a caller can run the rule
// sharded, offloaded, fused with the end of backward, or hold it back while a snapshot still copies. Not thread-safe.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual void update(int64_t piece, const UpdateFacts& facts) = 0;

  // update() of pieces first .. first+count-1, batched where that is faster.
  virtual void update_several(int64_t first, int64_t count, const UpdateFacts& facts);

  // For CUDA graphs (train/steps/cuda_graph_step.h): the values that change from step to step, in host memory, in the layout that the
  // rule's kernels read through UpdateFacts::step_scalars. Undefined: this rule cannot be captured.
  virtual at::Tensor step_scalars(const UpdateFacts& /*facts*/) { return {}; }

  // What must survive a restart, by logical name ("exp_avg.model.norm.weight"). The tensors are the optimizer's own: a loader writes
  // into them. Over pieces on the meta device they take no memory and tell how much the rule will keep.
  virtual mesh::NamedTensors state() = 0;
};

// The random numbers that round this piece in this update; none: round to nearest.
std::optional<base::Random> rounding_of(const ParameterPiece& piece, const UpdateFacts& facts);

// Writes an updated fp32 value into the bf16 parameter of a piece, rounded as rounding_of() says.
void round_into(const ParameterPiece& piece, const at::Tensor& wide, const UpdateFacts& facts);

// The effective gradient as a new fp32 tensor. Does not wait for the device.
at::Tensor scaled_gradient(const at::Tensor& gradient, const UpdateFacts& facts);

// The rule called options.kind. Refuses an unknown name and suggests the nearest. The list is in optimizers.cpp. `memory` gives the memory
// of its state; null: plain tensors.
std::unique_ptr<Optimizer> make_optimizer(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory = nullptr);

// The names that make_optimizer knows.
std::vector<std::string> optimizer_names();

}  // namespace cairn::optim
