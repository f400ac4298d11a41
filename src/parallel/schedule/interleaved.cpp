// Interleaved 1F1B (Megatron-LM, Narayanan et al. 2021, arXiv:2104.04473): v small stages ("model chunks") per rank instead of one large
// stage. Filling and draining the pipeline takes p-1 small stages instead of p-1 large ones, so the bubble is a v-th; there are v times the
// messages. Micro-batches go in groups of p, hence m must be a multiple of p.
//
// With p ranks and v = stages_per_rank, every rank runs m v forwards and m v backwards. The k-th forward of any rank is
//   chunk c = (k mod p v) / p,   stage c p + r,   micro-batch p (k / p v) + k mod p,
// and the k-th backward the same with chunk v-1-c.
#include <algorithm>

#include "parallel/schedule/generators.h"

namespace cairn::parallel {
namespace {

// The k-th forward, or backward, of a rank.
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
