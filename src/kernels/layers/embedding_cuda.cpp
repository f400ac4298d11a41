// Embedding lookup on a GPU: from tensors to pointers; sorts the ids.
#include "kernels/layers/embedding_cuda.h"

#include <limits>
#include <tuple>

#include "kernels/aten.h"
#include "kernels/cuda/tensor.h"
#include "kernels/layers/embedding_kernel.h"

namespace cairn::kernels {
namespace {

bool are_ids(const at::Tensor& ids, const at::Tensor& table) {
  return ids.device() == table.device() && ids.scalar_type() == at::kLong && ids.is_contiguous();
}

}  // namespace

bool embedding_on_cuda(const at::Tensor& y, const at::Tensor& table, const at::Tensor& ids) {
  if (!all_kernel_inputs(table, y) || !are_ids(ids, table)) return false;
  const CudaDeviceGuard device(table.device());
  const EmbeddingLaunch launch{.elements = elements_of(table),
                               .y = y.mutable_data_ptr(),
                               .table = table.const_data_ptr(),
                               .ids = ids.const_data_ptr<int64_t>(),
                               .count = ids.numel(),
                               .vocab = table.size(0),
                               .embed = table.size(1)};
  check_launch(launch_embedding(launch, stream_of(table)), "look-up");
  return true;
}

bool embedding_backward_on_cuda(const at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dy) {
  if (!all_kernel_inputs(dy) || !all_kernel_inputs(dtable) || dy.device() != dtable.device() || !are_ids(ids, dtable) ||
      dtable.size(0) > std::numeric_limits<int32_t>::max())
    return false;
  const CudaDeviceGuard device(dtable.device());
  // A stable sort keeps the order of equal ids; 32-bit keys take half the time of 64-bit ones.
  const auto [sorted, places] = ids.reshape({-1}).to(at::kInt).sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor ends = at::empty({embedding_backward_slices(ids.numel()), 2, dtable.size(1)}, dtable.options().dtype(at::kFloat));
  const EmbeddingBackwardLaunch launch{.elements = elements_of(dy),
                                       .table_elements = elements_of(dtable),
                                       .dtable = dtable.mutable_data_ptr(),
                                       .dy = dy.const_data_ptr(),
                                       .ids = sorted.const_data_ptr<int32_t>(),
                                       .places = places.const_data_ptr<int64_t>(),
                                       .ends = ends.mutable_data_ptr<float>(),
                                       .count = ids.numel(),
                                       .vocab = dtable.size(0),
                                       .embed = dtable.size(1)};
  check_launch(launch_embedding_backward(launch, stream_of(dtable)), "look-up gradient");
  return true;
}

}  // namespace cairn::kernels
