#pragma once
#include <optional>
#include <string>
#include <vector>

#include "study/benches.h"

namespace cairn::study {

// DiLoCo in plain PyTorch over Gloo (bench/diloco_gloo.py), the same work as a run of ours: model, first weights, samples and optimizer
// settings are taken from that run's recipe.

// What one evaluation of it found; `bytes` are of all processes so far.
struct PeerPoint {
  int64_t step = 0;
  double loss = 0, eval_loss = 0, seconds = 0, waited_s = 0, bytes = 0;
};

struct PeerIslands {
  std::string recipe;  // the file of a run of ours, all keys in it
  std::string links;   // as --links has them: a latency and a bandwidth
  int islands = 4;
  int64_t every = 30;  // steps of a round
  bool ddp = false;    // gradients at every step instead
};

// Its curve, from before the first step on. Nothing where Python's torch cannot be had, which is logged. A start at another loss than ours
// is refused: that would not be the same work.
std::optional<std::vector<PeerPoint>> run_peer_islands(const PeerIslands& peer, const BenchOptions& options, base::Log& log);

}  // namespace cairn::study
