#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::comm {
class Group;
}

namespace cairn::parallel {

// A flat buffer that operations of the group copy least from; ordinary memory on other devices than the CPU, or without a group.
at::Tensor group_buffer(comm::Group* group, int64_t elements, const at::TensorOptions& options);

}  // namespace cairn::parallel
