#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::comm {
class Group;
}

namespace cairn::parallel {

// A flat buffer in memory of the group, from which its collectives copy least (shared memory on one machine). A plain tensor on devices
// other than the CPU, or without a group.
at::Tensor group_buffer(comm::Group* group, int64_t elements, const at::TensorOptions& options);

}  // namespace cairn::parallel
