// StreamBP (arXiv:2506.03077): layers in slices along the sequence, forward and backward, with one checkpoint per layer.
//
// Plain recomputation runs a whole layer again in backward, so the activations of one layer over all tokens are the peak. Here a layer is
// recomputed and differentiated slice by slice. The gradient of a layer's weights is a sum over slices of its output Z_1 .. Z_D,
//
//   dL/dW = sum_i (dZ_i/dW)^T dL/dZ_i,
//
// and in a causal layer Z_i depends on inputs up to its end only. For a layer x -> r = x + attention(norm(x)) -> z = r + mlp(norm(r)):
//
//   project      for each slice: q, k, v of the slice, kept for the whole layer (model/sliced_heads.h); each is projected once
//   forward      for each slice: attention over the keys up to its end, mlp, z
//   backward     project again, then from the last slice to the first: forward of the slice with everything kept, its backward with dz.
//                That adds to the gradients of earlier keys; those of the slice's own keys are complete. dx takes the place of dz.
//
// Along cp the attention of a layer is one call for all positions of this rank (model/context), so that keys travel as often as without
// slices; what comes before and after it is in slices. Backward then goes through the slices twice: down to the attention, and on from it.
//
// Beside the checkpoint this needs memory for q, k, v, dk, dv and dz of one layer over all tokens, and the activations of one slice.
// Each parameter receives one contribution per slice, but its gradient is announced once (mesh/chunked_gradients.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "mesh/batch.h"
#include "model/call.h"
#include "model/values.h"

namespace cairn::model {
class Block;
class Model;
}  // namespace cairn::model

namespace cairn::parallel {

// Consecutive blocks [first, last) that are computed together: those of a layer in slices, or one block over whole sequences.
struct BlockGroup {
  size_t first = 0, last = 0;
  bool sliced = false;
  std::vector<std::string> reads = {};   // values from earlier blocks; fields of the batch are not among them
  std::vector<std::string> writes = {};  // values that later blocks read, or that the pass gives on
  bool operator==(const BlockGroup&) const = default;
};

// Groups the blocks [first, last) of a model. A group that is sliced has at most one attention, and begins with the norms that nothing
// before it reads. `wanted`: values that blocks after `last` read. `slice` 0: every block is a group.
std::vector<BlockGroup> group_blocks(const model::Model& model, size_t first, size_t last, const std::vector<std::string>& wanted,
                                     int64_t slice);

// The blocks of one group, and the pass they belong to. All is borrowed. `batch`: this rank's fields.
struct SlicedPass {
  const model::Model& model;
  const BlockGroup& group;
  const mesh::Batch& batch;
  const model::Call& call;
};

// Reads group.reads from `values` and puts group.writes there.
void forward_in_slices(const SlicedPass& pass, model::Values& values);

// Takes the gradients of group.writes out of `gradients` and adds those of group.reads; weight gradients go to `into`. `values` holds
// group.reads.
void backward_in_slices(const SlicedPass& pass, model::Values& values, model::Values& gradients, mesh::Gradients& into);

}  // namespace cairn::parallel
