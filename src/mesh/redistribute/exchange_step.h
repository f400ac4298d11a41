#pragma once
#include <string_view>

#include "comm/label.h"
#include "comm/work.h"
#include "mesh/redistribute/box_views.h"
#include "mesh/redistribute_plan.h"

namespace cairn::comm {
class World;
}

namespace cairn::mesh {

// The memory that a step reads and writes on this rank.
struct ExchangeMemory {
  BoxViews from;
  BoxViews to;
  at::TensorOptions options;  // dtype and device of both
};

// Starts one step of a plan on this rank: packs, calls the collective, and unpacks when the work is waited for. `name` distinguishes groups
// of the same ranks whose operations have separate orders.
comm::Work start_step(comm::World& world, const ExchangeStep& step, Partial::Reduce reduce, const ExchangeMemory& memory, comm::Label label,
                      std::string_view name);

}  // namespace cairn::mesh
