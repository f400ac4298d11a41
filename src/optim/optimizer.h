#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/random.h"
#include "mesh/named_tensor.h"

namespace cairn::optim {

struct OptimOptions;

// What one update works on: a parameter or a part of one, with its gradient. A rule whose unit is rows or matrices is handed
// pieces in their own shape: whole rows of a matrix, or all of it.
struct ParameterPiece {
  std::string name;
  at::Tensor parameter;
  at::Tensor gradient;
  bool decays = true;
  bool hidden = false;  // a matrix from hidden states to hidden states: no table, head, gain or bias
};

// What an update is told. The gradient counts times gradient_scale times *gradient_factor (one element on the device, the
// clipping factor), so that neither costs a pass of its own or a wait for the device.
struct UpdateFacts {
  int64_t step = 1;  // counts updates from 1; one that was skipped does not count
  double learning_rate = 0;
  double gradient_scale = 1;
  const at::Tensor* gradient_factor = nullptr;
  // How parameters in bf16 are rounded by rules that update them: of these numbers those of a piece's name and of the step, in this order.
  // Null: to the nearest.
  const base::Random* rounding = nullptr;
  // What numbers() of these facts came to, on the device: read when the update runs, in place of step, learning_rate and what `rounding`
  // holds (not whether there is any). Null: none.
  const at::Tensor* step_scalars = nullptr;
};

// The inner rule, in pieces, so that it can run sharded, offloaded, fused with the end of backward, or held back while a snapshot
// still copies: calling update(i) is the moment at which piece i may change.
class Optimizer {
 public:
  // What a piece must hold at least.
  enum class Granularity { elements, rows, matrices };

  virtual ~Optimizer() = default;
  virtual Granularity granularity() const = 0;
  // Whether the first update must wait until the norm of the whole gradient is known.
  virtual bool waits_for_norm() const = 0;
  virtual void update(int64_t piece, const UpdateFacts& facts) = 0;
  // update() of pieces first .. first+count-1, together where that is quicker.
  virtual void update_several(int64_t first, int64_t count, const UpdateFacts& facts);
  // For an update of all pieces that is recorded once and repeated with other facts (train/steps/cuda_graph_step.h): what of these it will
  // read, in host memory. Undefined: this rule cannot.
  virtual at::Tensor step_scalars(const UpdateFacts& /*facts*/) { return {}; }
  // What must survive a restart, by logical name. The tensors are the rule's own: a loader writes into them. Over pieces on the meta
  // device it costs nothing and tells what the rule will keep.
  virtual mesh::NamedTensors state() = 0;
};

// The numbers that round a piece in bf16 in this update; none: it is rounded to the nearest.
std::optional<base::Random> rounding_of(const ParameterPiece& piece, const UpdateFacts& facts);

// Writes what an update came to into a parameter in bf16, so rounded.
void round_into(const at::Tensor& parameter, const at::Tensor& wide, const std::optional<base::Random>& rounding);

// A gradient as it counts: a new fp32 tensor. Nothing waits for the device.
at::Tensor scaled_gradient(const at::Tensor& gradient, const UpdateFacts& facts);

// The rule called options.kind; an unknown one is refused and the nearest named. The list is in optimizers.cpp.
std::unique_ptr<Optimizer> make_optimizer(const OptimOptions& options, std::vector<ParameterPiece> pieces);

// Whether that rule updates parameters in bf16 by itself; others are given fp32 copies (rounding_optimizer.h).
bool updates_bf16(const OptimOptions& options);

// The names that make_optimizer knows.
std::vector<std::string> optimizer_names();

}  // namespace cairn::optim
