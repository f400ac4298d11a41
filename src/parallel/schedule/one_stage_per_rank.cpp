// Schedules with one stage per rank: rank r runs stage r. p ranks, m micro-batches; registry.cpp draws all three.
#include <algorithm>

#include "parallel/schedule/generators.h"

namespace cairn::parallel {

// GPipe (Huang et al. 2019): all forwards, then all backwards from the last micro-batch to the first. Bubble (p-1)/(m+p-1) of the step;
// every rank keeps the activations of all m micro-batches.
RankActions gpipe_actions(const PipelineSize& size) {
  RankActions all(size.ranks);
  for (int rank = 0; rank < size.ranks; ++rank) {
    for (int i = 0; i < size.micro_batches; ++i) all[rank].push_back({ActionKind::forward, rank, i});
    for (int i = size.micro_batches - 1; i >= 0; --i) all[rank].push_back({ActionKind::backward, rank, i});
  }
  return all;
}

// 1F1B (PipeDream-Flush, Narayanan et al. 2021): min(p-r-1, m) forwards to fill the pipeline (warm-up), then one forward and one backward
// in turn (steady state), then the backwards that are left (cool-down). The bubble is GPipe's; at most p-r micro-batches are alive, not m.
RankActions one_forward_one_backward_actions(const PipelineSize& size) {
  RankActions all(size.ranks);
  for (int rank = 0; rank < size.ranks; ++rank) {
    const int ahead = std::min(size.ranks - rank - 1, size.micro_batches);
    for (int i = 0; i < ahead; ++i) all[rank].push_back({ActionKind::forward, rank, i});
    for (int i = 0; i < size.micro_batches; ++i) {
      if (ahead + i < size.micro_batches) all[rank].push_back({ActionKind::forward, rank, ahead + i});
      all[rank].push_back({ActionKind::backward, rank, i});
    }
  }
  return all;
}

// ZB-H1 (zero bubble, Qi et al. 2023): 1F1B with backward cut into input gradient (I) and weight gradient (W). On rank r, W runs r
// micro-batches behind I. So the chain of input gradients goes from the last rank to the first without waiting, and the W that are left
// over fill the cool-down, where 1F1B idles: a third of its bubble. Each rank keeps p activations, as many as rank 0 of 1F1B.
RankActions zero_bubble_h1_actions(const PipelineSize& size) {
  RankActions all(size.ranks);
  for (int rank = 0; rank < size.ranks; ++rank) {
    const int ahead = std::min(size.ranks - rank - 1, size.micro_batches);
    for (int i = 0; i < ahead; ++i) all[rank].push_back({ActionKind::forward, rank, i});
    for (int i = 0; i < size.micro_batches; ++i) {
      if (ahead + i < size.micro_batches) all[rank].push_back({ActionKind::forward, rank, ahead + i});
      all[rank].push_back({ActionKind::backward_input, rank, i});
      if (i >= rank) all[rank].push_back({ActionKind::backward_weight, rank, i - rank});
    }
    for (int i = std::max(size.micro_batches - rank, 0); i < size.micro_batches; ++i)
      all[rank].push_back({ActionKind::backward_weight, rank, i});
  }
  return all;
}

}  // namespace cairn::parallel
