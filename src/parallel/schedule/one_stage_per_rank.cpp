// Schedules of one stage per rank: stage r is rank r's. Here p ranks, m micro-batches, rank r.
#include <algorithm>

#include "parallel/schedule/generators.h"

namespace cairn::parallel {

// All forwards, then all backwards from the last micro-batch to the first (GPipe).
RankActions gpipe_actions(const PipelineSize& size) {
  RankActions all(size.ranks);
  for (int rank = 0; rank < size.ranks; ++rank) {
    for (int i = 0; i < size.micro_batches; ++i) all[rank].push_back({ActionKind::forward, rank, i});
    for (int i = size.micro_batches - 1; i >= 0; --i) all[rank].push_back({ActionKind::backward, rank, i});
  }
  return all;
}

// min(p-r-1, m) forwards to fill the pipeline, then a forward and a backward in turn, then the backwards that are left
// (PipeDream-Flush). At most p-r micro-batches are alive, not m.
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

// 1F1B with the backward cut in two (zero bubble, H1). Rank r lags r weight gradients behind its input gradients: so the gradient
// chain runs at full speed from the last rank to the first, and the weight gradients left over fill the end, where 1F1B waits. With
// r more activations kept for them than 1F1B keeps, each rank holds p, as much as rank 0 of 1F1B.
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
