// Embedding lookup, and its gradient with a fixed order of summation.
#pragma once
#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

// Shapes: table and dtable [vocab, embed]; ids [...] int64 in 0 .. vocab-1 (the CPU refuses others); y and dy [..., embed].

// Overwrites y: y[i] = table[ids[i]].
void embedding(const at::Tensor& y, const at::Tensor& table, const at::Tensor& ids);

// Adds: dtable[ids[i]] += dy[i]. Each table row is summed in the order of i, for any number of threads; a GPU sums groups of 64 in that
// order and then the groups. Results are bitwise identical each time. dy may have a lower precision than dtable.
void embedding_backward(const at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dy);

namespace reference {
void embedding(const at::Tensor& y, const at::Tensor& table, const at::Tensor& ids);
void embedding_backward(const at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dy);
}  // namespace reference

}  // namespace cairn::kernels
