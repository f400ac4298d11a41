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

using RankActions = std::vector<std::vector<Action>>;

// One stage per rank (straight_schedules.cpp).
RankActions gpipe_actions(const PipelineSize& size);
RankActions one_forward_one_backward_actions(const PipelineSize& size);
RankActions zero_bubble_h1_actions(const PipelineSize& size);

// The order that registers alone make (flow_schedule.cpp).
RankActions flow_actions(const PipelineSize& size);

// Several stages per rank, in loops: rank r runs the stages r, p+r, 2p+r, ... (interleaved_schedule.cpp).
RankActions interleaved_actions(const PipelineSize& size);

// Two stages per rank, there and back: rank r runs the stages r and 2p-1-r (v_schedules.cpp).
RankActions zero_bubble_v_actions(const PipelineSize& size);
RankActions dual_pipe_v_actions(const PipelineSize& size);

}  // namespace cairn::parallel
