#include "parallel/batch/sequence_fields.h"

#include <ATen/core/IListRef.h>

#include "kernels/aten.h"
#include "kernels/cross_entropy.h"

namespace cairn::parallel {

void add_sequence_fields(mesh::Batch& batch) {
  const auto found = batch.fields.find("tokens");
  if (found == batch.fields.end() || found->second.tensor.dim() != 2) return;
  const mesh::Field field = found->second;
  const int64_t rows = field.tensor.size(0), length = field.tensor.size(1);
  const at::TensorOptions options = field.tensor.options().dtype(at::kLong);
  at::Tensor sequence = at::arange(rows, options).view({-1, 1}).expand({rows, length}).contiguous();
  int64_t count = rows;
  if (const auto documents = batch.fields.find("documents"); documents != batch.fields.end() && sequence.numel() > 0) {
    const at::Tensor& of = documents->second.tensor;
    at::Tensor begins = at::ones({rows, length}, options);
    begins.narrow(1, 1, length - 1).copy_(of.narrow(1, 1, length - 1).ne(of.narrow(1, 0, length - 1)));
    sequence = (begins.view({-1}).cumsum(0) - 1).view({rows, length});
    count = sequence.select(0, rows - 1).select(0, length - 1).item<int64_t>() + 1;
  }
  at::Tensor has_target = at::ones({rows, length}, options.dtype(at::kBool));
  if (const auto targets = batch.fields.find("targets");
      targets != batch.fields.end() && targets->second.tensor.sizes() == has_target.sizes())
    has_target = targets->second.tensor.ne(kernels::kIgnoreTarget);
  const at::Tensor tokens = at::zeros({count}, options).scatter_add_(0, sequence.view({-1}), has_target.reshape({-1}).to(at::kLong));
  batch.fields["sequences"] = {sequence.masked_fill(has_target.logical_not(), -1), field.shape};
  batch.fields["sequence_tokens"] = {tokens, mesh::Field::Shape::whole};
}

}  // namespace cairn::parallel
