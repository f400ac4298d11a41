// The generators behind schedule_kinds(). Each gets a size that its line in registry.cpp allows, and lists the actions of every rank.
#pragma once
#include "parallel/schedule.h"

namespace cairn::parallel {

// One stage per rank (one_stage_per_rank.cpp).
RankActions gpipe_actions(const PipelineSize& size);
RankActions one_forward_one_backward_actions(const PipelineSize& size);
RankActions zero_bubble_h1_actions(const PipelineSize& size);

// Several stages per rank, looped (interleaved.cpp).
RankActions interleaved_actions(const PipelineSize& size);

// Two stages per rank, v_shaped (v_shaped.cpp).
RankActions zero_bubble_v_actions(const PipelineSize& size);
RankActions dual_pipe_v_actions(const PipelineSize& size);

// The order that bounded registers alone produce (flow.cpp).
RankActions flow_actions(const PipelineSize& size);

}  // namespace cairn::parallel
