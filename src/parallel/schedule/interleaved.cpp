// Interleaved 1F1B (Megatron-LM): v small stages per rank instead of a large one, the bubble a v-th at v times the messages.
#include <algorithm>

#include "base/check.h"
#include "parallel/schedule/generators.h"

namespace cairn::parallel {
namespace {

// The k-th forward, or backward, of any rank: which of the rank's stages, and which micro-batch. p micro-batches go through each
// stage of the rank before the next p.
Action virtual_micro_batch(const PipelineSize& size, int rank, ActionKind kind, int k) {
  const int group = size.ranks * size.stages_per_rank;
  const int forward_chunk = k % group / size.ranks;
  const int chunk = kind == ActionKind::forward ? forward_chunk : size.stages_per_rank - 1 - forward_chunk;
  return {kind, chunk * size.ranks + rank, size.ranks * (k / group) + k % size.ranks};
}

// How many forwards a rank runs before its first backward. (All of them where m = p, as Megatron-LM does.)
int forwards_ahead(const PipelineSize& size, int rank) {
  const int all = size.micro_batches * size.stages_per_rank;
  if (size.micro_batches == size.ranks) return all;
  return std::min(2 * (size.ranks - rank - 1) + (size.stages_per_rank - 1) * size.ranks, all);
}

}  // namespace

RankActions interleaved_actions(const PipelineSize& size) {
  if (size.micro_batches % size.ranks != 0) {
    const int below = size.micro_batches / size.ranks * size.ranks;
    const std::string nearest = below == 0 ? fmt::format("{}", size.ranks) : fmt::format("{} or {}", below, below + size.ranks);
    base::fail_input(
        "schedule interleaved: {} micro-batches over {} ranks: must be a multiple of the ranks; take {} micro-batches, or 1f1b or zbv, "
        "which "
        "take any number",
        size.micro_batches, size.ranks, nearest);
  }
  RankActions all(size.ranks);
  const int count = size.micro_batches * size.stages_per_rank;
  for (int rank = 0; rank < size.ranks; ++rank) {
    const int ahead = forwards_ahead(size, rank);
    for (int k = 0; k < ahead; ++k) all[rank].push_back(virtual_micro_batch(size, rank, ActionKind::forward, k));
    for (int k = 0; k < count; ++k) {
      if (ahead + k < count) all[rank].push_back(virtual_micro_batch(size, rank, ActionKind::forward, ahead + k));
      all[rank].push_back(virtual_micro_batch(size, rank, ActionKind::backward, k));
    }
  }
  return all;
}

}  // namespace cairn::parallel
