#include "parallel/state/releasable_storage.h"

#include <c10/core/DeviceGuard.h>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::parallel {

at::Tensor unallocated_tensor(int64_t elements, const at::TensorOptions& options) {
  const at::Tensor tensor = at::empty({elements}, options);
  free_storage(tensor);
  return tensor;
}

bool has_storage(const at::Tensor& tensor) { return tensor.storage().data() != nullptr; }

void allocate_storage(const at::Tensor& tensor) {
  CAIRN_CHECK(!has_storage(tensor), "memory for a tensor that has some");
  const c10::DeviceGuard device(tensor.device());
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(storage.allocator()->allocate(storage.nbytes()));
}

void free_storage(const at::Tensor& tensor) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
}

}  // namespace cairn::parallel
