#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace cairn::model {

// StreamBP: what the slices of one attention share (parallel/activations/slices.h has the method). A slice attends to the keys up to its
// end. In backward, slices come from the last to the first: a slice adds its part of the gradients of the keys that it sees, so when its
// own turn is over, the gradients of its keys are complete.
struct SlicedHeads {
  int64_t batch = 0, length = 0;  // of the whole sequences
  at::Tensor documents = {};    // [batch, length] int64 of all positions; undefined: none
  at::Tensor qkv = {};          // [batch, length, (heads + 2 kv_heads) head_dim], rotated unless heads are normed
  at::Tensor k = {};            // where heads are normed: keys after norm and rotation, [batch, length, kv_heads, head_dim]
  at::Tensor dk = {}, dv = {};  // [batch, length, kv_heads, head_dim]: sums of gradients, in fp32 or double

  // Along cp, where attention is one call for all positions of this rank:
  at::Tensor q = {};                  // where heads are normed: queries after norm and rotation
  at::Tensor mixed = {}, lse = {};    // its results
  at::Tensor dmixed = {}, dqkv = {};  // gradients of its result, slice by slice, and of what it read
};

}  // namespace cairn::model
