#pragma once
#include <cstdint>
#include <vector>

#include "sync/options.h"

namespace cairn::sync {

// How much islands communicate in one round of gossip.
struct GossipIntensity {
  bool with_all = false;  // the mean over all islands
  double neighbours = 0;  // else, with topology = random: how many others, on average
  bool operator==(const GossipIntensity&) const = default;
};

// The rounds of one run. A pure function of the options and these facts, so that all islands know every round.
struct GossipRun {
  int islands = 1;
  int64_t rounds = 0;  // of the run; 0: not known
  uint64_t seed = 0;
  // What one island sends, in bytes: a model to one other island, its part of a round with all, its part of the final merge.
  int64_t model_bytes = 0, all_bytes = 0, final_bytes = 0;
};

// The schedule r(t) of "A Single Merging Suffices", over progress p = t / T for the rounds t = 1 ... T:
//
//   fixed, final   r
//   window         all islands for p in a window, else r
//   linear         r + (r_end - r) p
//   cosine         r + (r_end - r) (1 - cos(pi p)) / 2
//   budget         r, and all islands in as many rounds at the end as the bytes allow
class GossipPlan {
 public:
  // Throws bad_input for a budget that the rounds with `neighbours` others exceed, with the least that works.
  GossipPlan(const GossipOptions& options, const GossipRun& run);

  GossipIntensity at(int64_t round) const;               // from 1
  int64_t rounds_with_all() const { return with_all_; }  // budget: at the end

 private:
  double ramp(int64_t round) const;

  GossipOptions options_;
  GossipRun run_;
  int64_t with_all_ = 0;
};

}  // namespace cairn::sync
