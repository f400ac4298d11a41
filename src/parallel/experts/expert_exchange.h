// Expert parallelism: rows of tokens travel to the ranks that hold their experts, and results travel back.
//
//   begin              all-gather: how many rows each rank has for each expert (E + 1 integers per rank); then plan_rows on all ranks
//   dispatch           rows in the order of ranks --uneven all-to-all--> rows in the order of local experts
//   combine            the same way back; both again in backward, with gradients
#pragma once
#include <memory>

#include "model/experts/exchange.h"
#include "parallel/expert_copies/copy_plan.h"
#include "parallel/options.h"

namespace cairn::comm {
class Group;
}

namespace cairn::parallel {

class RowObserver;

// The dispatch to experts over the ranks along ep. `group` is borrowed, and for nothing else: operations of a group complete in the order
// of their start. A call without an axis ep runs on one rank that holds all experts.
// `observer`: of passes with gradients; null: there is none. Borrowed.
std::unique_ptr<model::ExpertExchange> make_expert_exchange(comm::Group& group, const ExpertLayoutOptions& options,
                                                            RowObserver* observer = nullptr);

// The machine of each rank of a group, by expert.node_ranks.
NodeOf nodes_along(const comm::Group& group, const ExpertLayoutOptions& options);

}  // namespace cairn::parallel
