// Stragglers made on purpose, for tests and studies: which workers are slow in which round.
#pragma once
#include <cstdint>

#include "base/random.h"

namespace cairn::sync {

// A two-state chain for each worker: one that is well becomes slow with probability `enter` per round, one that is slow becomes well with
// probability `leave`. A slow worker takes `delay_s` seconds longer.
struct StragglerOptions {
  double enter = 0;
  double leave = 0.5;
  double delay_s = 1;
};

// The chain of one worker: a function of the seed, so that every method meets the same slow rounds.
class StragglerChain {
 public:
  StragglerChain(const StragglerOptions& options, uint64_t seed, int worker)
      : options_(options), random_(base::Random(seed).for_purpose("stragglers").for_index(static_cast<uint64_t>(worker))) {}

  // Whether the worker is slow in its next round.
  bool next() {
    const double drawn = random_.uniform(round_++);
    slow_ = slow_ ? drawn >= options_.leave : drawn < options_.enter;
    return slow_;
  }

 private:
  StragglerOptions options_;
  base::Random random_;
  uint64_t round_ = 0;
  bool slow_ = false;
};

}  // namespace cairn::sync
