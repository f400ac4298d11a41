// Embedding lookup and its gradient in plain ATen operations.
#include "kernels/embedding.h"

#include <ATen/TensorIndexing.h>

#include "kernels/aten.h"

namespace cairn::kernels::reference {

void embedding(const at::Tensor& y, const at::Tensor& table, const at::Tensor& ids) {
  y.copy_(table.index_select(0, ids.reshape({-1})).reshape(y.sizes()));
}

void embedding_backward(const at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dy) {
  const at::Tensor flat = ids.reshape({-1}), rows = dy.reshape({-1, dtable.size(1)}).to(dtable.scalar_type());
  if (dtable.device().is_cpu())
    dtable.index_add_(0, flat, rows);  // one after the other
  else
    dtable.index_put_({flat}, rows, /*accumulate=*/true);  // sorts on a GPU, where index_add_ would race
}

}  // namespace cairn::kernels::reference
