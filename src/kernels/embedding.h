// Rows of a table by id, and the addition of their gradients in a fixed order.
#pragma once
#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

// table and dtable [vocab, embed], ids [...] int64 in 0 .. vocab-1 (on the CPU an id outside is refused), y and dy [..., embed].

// Overwrites y: y[i] = table[ids[i]].
void embedding(const at::Tensor& y, const at::Tensor& table, const at::Tensor& ids);

// Adds: dtable[ids[i]] += dy[i], for each table row in the order of i, whatever the number of threads; a GPU adds up 64 at a time in that
// order and then these sums, the same bits each time. dy may be of lower precision than dtable.
void embedding_backward(const at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dy);

namespace reference {
void embedding(const at::Tensor& y, const at::Tensor& table, const at::Tensor& ids);
void embedding_backward(const at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dy);
}  // namespace reference

}  // namespace cairn::kernels
