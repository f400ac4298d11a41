#pragma once
#include <c10/core/Device.h>

#include "model/context/choose.h"

namespace cairn::comm {
class Group;
}

namespace cairn::parallel {

// Measures the links among the ranks of `cp` with messages of that group, and how fast a rank attends, by the world's clock; `device` is
// where tensors live. Takes some milliseconds, or on slow links a few round trips with each rank. `all` holds every rank that calls this,
// each with its own `cp` of the same size: all get the same answer, the slowest of any such group.
model::ContextLinks measure_context_links(comm::Group& cp, comm::Group& all, c10::Device device);

}  // namespace cairn::parallel
