// Which samples each round of rs2 draws from one pool: from all samples, or from one class of them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/random/permutation.h"
#include "data/samples/sampler_options.h"

namespace cairn::data {

// A round's part of a pool: `count` samples from place `cursor` of the pool's order in `cycle` on and, where that order ends before, from
// the beginning of the next one.
struct RoundPart {
  int64_t cycle = 0, cursor = 0, count = 0;
  double unseen = 1;  // the expected share of the pool that no cycle before this one has drawn
};

// A pool of `size` samples, in a new random order in each cycle. An order is a permutation keyed by (random, cycle) and evaluated place by
// place, so no order is stored. Rounds take an order from its beginning to its end; `options` say what becomes of the samples at its end
// that are too few for a round, and whether each round begins a cycle of its own (replacement) or all have the first places of one order
// (fixed). Thread-safe.
//
// RoundTail::carry changes the beginning of an order: samples that the end of the order before gave to the same round move behind the
// round. So none comes twice in a round, and each comes once in a cycle.
class RoundPool {
 public:
  RoundPool(int64_t size, const SamplerOptions& options, const base::Random& random);

  int64_t size() const { return size_; }
  // The part of the round after that of `before`; none: the first round. Rounds must be asked for in order. 1 <= count <= size.
  RoundPart next(const std::optional<RoundPart>& before, int64_t count);
  // The places in the pool of samples `indices` of a part.
  std::vector<int64_t> places(const RoundPart& part, std::span<const int64_t> indices) const;
  // The expected share of the pool that was drawn up to the end of this part's round.
  double seen(const RoundPart& part) const;

 private:
  // The round that goes on from one cycle to the next.
  struct Carried {
    int64_t samples = 0;  // from the end of the cycle before; 0: no round goes on into this cycle
    int64_t count = 0;    // of the round
  };
  using Places = std::vector<int64_t>;
  base::Permutation order(int64_t cycle) const;
  Carried carried_into(int64_t cycle) const;
  std::shared_ptr<const Places> beginning(int64_t cycle) const;  // the changed beginning of an order that a round goes on into
  Places make_beginning(int64_t cycle, const Carried& carried) const;

  const int64_t size_;
  const SamplerOptions options_;
  const base::Random random_;
  mutable std::recursive_mutex mutex_;
  std::vector<Carried> carried_;                                         // by cycle
  mutable std::map<int64_t, std::shared_ptr<const Places>> beginnings_;  // of the last cycles
};

}  // namespace cairn::data
