#pragma once
#include <cstdint>
#include <vector>

#include "comm/collectives/collectives.h"
#include "comm/collectives/layout.h"

namespace cairn::comm {

// The two halves of the ring algorithm (ring.cpp). Every rank sends to the next one only.
class Ring {
 public:
  Ring(Exchange& exchange, const Span& x, const std::vector<int64_t>& counts, Reduce reduce);
  int64_t pieces() const { return parts_.pieces(); }

  // Part i starts at rank i + 1 and is reduced on its way round to rank i, its owner.
  Coroutine reduce_scatter(int64_t piece);
  // Part i starts at its owner, rank i, and passes all other ranks.
  Coroutine all_gather(int64_t piece);

 private:
  int wrap(int rank) const { return ((rank % n_) + n_) % n_; }
  uint32_t step(int64_t piece, int hop) const { return static_cast<uint32_t>(piece * 2 * (n_ - 1) + hop); }
  void pass_on(int part, int64_t piece, int hop, std::vector<Completion>& sent);

  Exchange& exchange_;
  Parts parts_;
  Reduce reduce_;
  int n_;
  int me_;
};

}  // namespace cairn::comm
