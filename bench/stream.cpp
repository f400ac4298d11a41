// `cairn bench stream`: a pass forward and back in slices along the sequence (recompute.mode = stream), beside activation recomputation by
// block with whole logits (recompute.mode = full). One sequence in fp32, in turn, after a warm-up: the peak of tensors beside weights and
// gradients, and the time.
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "kernels/aten.h"
#include "memory/host_allocator.h"
#include "model/objective.h"
#include "proofs/hand_built.h"
#include "proofs/stream_trial.h"
#include "study/benches.h"

namespace cairn::study {
namespace {

struct StreamCase {
  int64_t vocab, length;
  StreamWay ours;
  double memory_goal = 0, time_goal = 0;
};

constexpr int kRounds = 5;

std::vector<BenchRow> measure(const StreamCase& c, const std::string& name, base::Log& log) {
  const auto objective = model::make_next_token();
  StreamTrial trial(stream_shape(c.vocab, c.length), at::kFloat, 1);
  const mesh::Batch batch = random_tokens({.samples = 1, .length = c.length, .vocab = c.vocab});
  std::vector<double> our_s, peer_s, our_mib, peer_mib;
  for (int round = 0; round <= kRounds; ++round) {
    const StreamTrial::Outcome ours = trial.run(batch, *objective, c.ours), peer = trial.run(batch, *objective, kRecomputation);
    if (round == 0) continue;
    our_s.push_back(ours.seconds), peer_s.push_back(peer.seconds);
    our_mib.push_back(static_cast<double>(ours.peak_bytes) / (1 << 20)), peer_mib.push_back(static_cast<double>(peer.peak_bytes) / (1 << 20));
  }
  log.info("{}: {:.1f} MiB against {:.1f}, {:.2f} s against {:.2f}", name, our_mib[0], peer_mib[0], our_s[0], peer_s[0]);
  return {compare(name + ", peak", our_mib, peer_mib, "MiB", Better::lower, c.memory_goal),
          compare(name + ", time", our_s, peer_s, "s", Better::lower, c.time_goal)};
}

}  // namespace

std::vector<BenchRow> bench_stream(const BenchOptions& options, base::Log& log) {
  memory::install_host_allocator();
  constexpr double kTime = 1 / 1.15;
  const std::vector<StreamCase> cases{{32000, 2048, streamed(256, 64), 4, 0},
                                      {32000, 2048, streamed(683, 256), 0, kTime},
                                      {32000, 6144, streamed(512, 128), 4, 0},
                                      {256, 2048, streamed(256, 64), 1.8, 0}};
  std::vector<BenchRow> rows;
  for (const StreamCase& c : cases) {
    const std::string name = fmt::format("{} tokens of {}, slices of {}", c.length, c.vocab, c.ours.slice);
    if (!options.only.empty() && options.only != name) continue;
    for (BenchRow& row : measure(c, name, log)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace cairn::study
