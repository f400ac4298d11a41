#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace cairn::optim {

// Where rules take the memory of their state from. Pieces of one group (ParameterPiece::group) are updated together, and what belongs to
// them may be away between updates (swapped_optimizer.h).
class StateMemory {
 public:
  virtual ~StateMemory() = default;
  // Zeros for pieces of this group.
  virtual at::Tensor zeros(int64_t group, at::IntArrayRef sizes, const at::TensorOptions& options) = 0;
};

// The memory of `from`, or plain tensors where that is null.
at::Tensor state_zeros(StateMemory* from, int64_t group, at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace cairn::optim
