// Expert parallelism: rows of tokens travel to the ranks that hold their experts, and results travel back.
//
//   begin              all-gather: how many rows each rank has for each expert (E + 1 integers per rank); plan_rows on all ranks alike
//   dispatch           rows in the order of ranks --uneven all-to-all--> rows in the order of local experts
//   combine            the same way back; both again in backward, with gradients
#pragma once
#include <memory>

#include "model/experts/exchange.h"
#include "parallel/options.h"

namespace cairn::comm {
class Group;
}

namespace cairn::parallel {

// The dispatch to experts over the ranks along ep. `group` is borrowed, and for nothing else: operations of a group complete in the order
// of their start. A call without an axis ep runs on one rank that holds all experts.
std::unique_ptr<model::ExpertExchange> make_expert_exchange(comm::Group& group, const ExpertOptions& options);

}  // namespace cairn::parallel
