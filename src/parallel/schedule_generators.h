// The generators behind make_schedule. Each is handed a size that its line in schedules.cpp allows, and fills in route and actions.
#pragma once
#include <vector>

#include "parallel/schedule.h"

namespace cairn::parallel {

struct PipelineSize {
  int ranks = 1;
  int stages_per_rank = 1;
  int micro_batches = 1;
};

using RanksActions = std::vector<std::vector<Action>>;

// One stage per rank (straight_schedules.cpp).
RanksActions gpipe_actions(const PipelineSize& size);
RanksActions one_forward_one_backward_actions(const PipelineSize& size);
RanksActions zero_bubble_h1_actions(const PipelineSize& size);

// The order that registers alone make (flow_schedule.cpp).
RanksActions flow_actions(const PipelineSize& size);

// Several stages per rank, in loops: rank r runs the stages r, p+r, 2p+r, ... (interleaved_schedule.cpp).
RanksActions interleaved_actions(const PipelineSize& size);

// Two stages per rank, there and back: rank r runs the stages r and 2p-1-r (v_schedules.cpp).
RanksActions zero_bubble_v_actions(const PipelineSize& size);
RanksActions dual_pipe_v_actions(const PipelineSize& size);

}  // namespace cairn::parallel
