#include "parallel/lent_memory.h"

#include <c10/core/DeviceGuard.h>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::parallel {

at::Tensor without_memory(int64_t elements, const at::TensorOptions& options) {
  const at::Tensor tensor = at::empty({elements}, options);
  take_memory_back(tensor);
  return tensor;
}

bool has_memory(const at::Tensor& tensor) { return tensor.storage().data() != nullptr; }

void lend_memory(const at::Tensor& tensor) {
  CAIRN_CHECK(!has_memory(tensor), "memory for a tensor that has some");
  const c10::DeviceGuard device(tensor.device());
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(storage.allocator()->allocate(storage.nbytes()));
}

void take_memory_back(const at::Tensor& tensor) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
}

}  // namespace cairn::parallel
