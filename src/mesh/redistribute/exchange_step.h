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

// What a step reads and writes on this rank.
struct ExchangeMemory {
  BoxViews from;
  BoxViews to;
  at::TensorOptions options;  // dtype and device of both
};

// Starts one step of a plan on this rank, which takes part in it: packs, calls the collective, and unpacks when the work is waited for.
// `name` tells groups apart that must not share an order of operations.
comm::Work start_step(comm::World& world, const ExchangeStep& step, Partial::Reduce reduce, const ExchangeMemory& memory, comm::Label label,
                      std::string_view name);

}  // namespace cairn::mesh
