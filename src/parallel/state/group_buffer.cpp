#include "parallel/state/group_buffer.h"

#include "comm/group.h"
#include "kernels/aten.h"

namespace cairn::parallel {

at::Tensor group_buffer(comm::Group* group, int64_t elements, const at::TensorOptions& options) {
  if (!group || !options.device().is_cpu()) return at::empty({elements}, options);
  const std::shared_ptr<void> memory = group->allocate(elements * static_cast<int64_t>(options.dtype().itemsize()));
  return at::from_blob(
      memory.get(), {elements}, [memory](void*) {}, options);
}

}  // namespace cairn::parallel
