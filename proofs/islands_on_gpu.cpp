// Islands that share one GPU, over a slow link: whether it ever has nothing to do.
#include <fmt/format.h>

#include "base/log.h"
#include "proofs/gpu_runs.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

// Steps of a round, of which each takes long enough for a round to be longer than 300 million numbers travel (10 s in fp32), which is what
// CO2 asks for. Two rounds are trained, and a few steps more: with the last one islands wait for all that is under way.
constexpr int64_t kEvery = 63, kSteps = 2 * kEvery + kLastSteps + 4;

// 300 million parameters, two islands, a link of 1 Gbit/s.
GpuTrained train_islands(const ProofOptions& options, base::Log& log, const std::string& name, int64_t steps, const Assignments& rule) {
  Assignments sets = gpu_decoder(
      options, {.embed = 1024, .layers = 22, .heads = 16, .kv_heads = 16, .mlp = 3072, .batch = 96, .length = 1024, .wide_state = true});
  sets.emplace_back("train.micro_batch=24");
  sets.insert(sets.end(), rule.begin(), rule.end());
  GpuTrained trained =
      must_train_on_gpu(options, log, name,
                        {.sets = std::move(sets), .steps = steps, .arguments = {"--islands", "2", "--links", "1ms,1Gbit"}, .limit_s = 200});
  if (trained.busy)
    log.info("{}: the GPU is busy {:.1f} % of the time; {:.1f} s were spent waiting for the other island", name, 100 * *trained.busy,
             trained.waited_s);
  return trained;
}

Assignments rounds_of(const std::string& kind, const Assignments& more = {}) {
  Assignments rule{fmt::format("sync.island.every={}", kEvery), "sync.island.kind=" + kind};
  rule.insert(rule.end(), more.begin(), more.end());
  return rule;
}

// Of the last two thirds of the steps.
void claim_busy(Findings& findings, const std::string& claim, const GpuTrained& baseline, const GpuTrained& ours, double bound) {
  if (!baseline.busy || !ours.busy) return findings.skip(claim, "this GPU does not tell how busy it is");
  findings.at_least(claim, *baseline.busy, *ours.busy, bound);
}

// Over whole rounds, without the end of the run.
double mean_step_s(const GpuTrained& trained) { return (trained.ends_s[2 * kEvery] - trained.ends_s[0]) / (2 * kEvery); }

}  // namespace

void prove_streaming_diloco_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  const GpuTrained sum = train_islands(options, log, "sum", 4, {"sync.island.kind=all_reduce"});
  const GpuTrained diloco = train_islands(options, log, "diloco", kSteps, rounds_of("diloco"));
  const GpuTrained streaming =
      train_islands(options, log, "streaming", kSteps,
                    rounds_of("streaming_diloco", {"sync.island.fragment_layers=3", "sync.island.delay=6", "sync.island.wire=e3m0"}));
  findings.at_most("300 M parameters, two islands on one GPU, 1 Gbit/s: seconds of a step, DiLoCo / an all-reduce at every step", 1,
                   mean_step_s(diloco) / sum.step_s(), 0.5);
  findings.at_most("the same, streaming / DiLoCo", 1, mean_step_s(streaming) / mean_step_s(diloco), 1);
  claim_busy(findings, "share of the time in which the GPU is busy, streaming (baseline: DiLoCo)", diloco, streaming, 0.95);
}

void prove_co2_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  const GpuTrained waits = train_islands(options, log, "diloco", kSteps, rounds_of("diloco")),
                   co2 = train_islands(options, log, "co2", kSteps, rounds_of("co2"));
  claim_busy(findings, "300 M parameters, two islands on one GPU, 1 Gbit/s: share of the time in which it is busy (baseline: DiLoCo)",
             waits, co2, 0.97);
  // What the ends of rounds cost: steps around them against as many usual ones. One by one they say little: there the host waits until the
  // GPU has done what it was given before, so that one step looks longer and those after it shorter.
  constexpr size_t kAround = 4;
  double lost = 0, longest = 0;
  std::string all;
  for (const size_t end : {kEvery, 2 * kEvery})
    for (size_t step = end - kAround; step < end + kAround && step + kLastSteps < co2.ends_s.size(); ++step) {
      const double took = co2.ends_s[step] - co2.ends_s[step - 1];
      lost += took / co2.step_s() - 1;
      longest = std::max(longest, took / co2.step_s());
      all += fmt::format(" {}: {:.0f}", step + 1, took * 1e3);
    }
  log.info("co2: steps around the ends of rounds, ms:{}", all);
  // As the published claim has it, and as the time that is lost. The first counts the host's wait, which later steps make up for.
  findings.at_most("longest step around an end of a round, in usual steps (no gap in the compute stream)", 1, longest, 1.1);
  findings.at_most("both ends of rounds together: usual steps that would fit into the time they take", 0, lost, 0.5);
}

}  // namespace cairn::study
