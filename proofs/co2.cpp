// CO2: the mean of the islands travels while the next round is trained, and is used one round late. Baselines are an all-reduce at every
// step and averaging that waits.
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/log.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "proofs/island_pilot.h"
#include "proofs/layout_run.h"
#include "proofs/paired_draws.h"
#include "study/claims.h"
#include "study/curves_svg.h"

namespace cairn::study {
namespace {

sync::SyncOptions late(int64_t every, double momentum, sync::StalenessGap gap, double clip = 1) {
  sync::SyncOptions options{.kind = "co2"};
  options.co2 = {.every = every, .outer_lr = 1, .outer_momentum = momentum, .gap = gap, .clip = clip};
  return options;
}

at::Tensor row(sync::Sync& rule) {
  std::vector<at::Tensor> all;
  at::Tensor flat;
  for (const at::Tensor& one : rule.global_parameters())
    flat = flat.defined() ? at::cat(std::vector<at::Tensor>{flat, one.view({-1})}) : one.view({-1});
  return flat.clone();
}

// Where each round starts from, by island.
using Starts = std::map<int, std::vector<at::Tensor>>;
Starts starts_of(PilotRun run) {
  Starts starts;
  std::mutex lock;
  run.after = [&](comm::World& world, sync::Sync& rule, int64_t step) {
    if (step % run.sync.co2.every != 0) return;
    const at::Tensor start = row(rule);
    const std::lock_guard guard(lock);
    starts[world.rank()].push_back(start);
  };
  for (const std::exception_ptr& error : run_pilot(run).errors)
    if (error) std::rethrow_exception(error);
  return starts;
}

void exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("exactness");
  const PilotRun apart{.seed = options.seed, .islands = 4, .steps = 12, .alone = true};
  PilotRun one_round = apart;
  one_round.alone = false;
  one_round.sync = late(12, 0, sync::StalenessGap::off, 0);
  findings.at_most("1. one round, no momentum, gap off, nothing left under way: largest difference to the mean of the islands", 0,
                   (run_pilot(one_round).global_parameters[1] - mean_of(run_pilot(apart).own)).abs().max().item<double>(), 1e-6);

  const Starts starts = starts_of({.seed = options.seed, .islands = 4, .steps = 120, .sync = late(12, 0.5, sync::StalenessGap::ratio)});
  double others = 0;
  for (const auto& [island, of_rounds] : starts)
    for (size_t round = 0; round < of_rounds.size(); ++round) others += at::equal(of_rounds[round], starts.at(0)[round]) ? 0 : 1;
  findings.at_most("1. rounds that start from other bits on some island than on the first (4 islands, 10 rounds)", 0, others, 0);

  const std::filesystem::path folder = std::filesystem::path(options.scratch) / "exact";
  const base::Recipe recipe =
      with(small_decoder(options, {"model.layers=2", "model.embed=24", "model.heads=2", "model.mlp=40"}),
           {"train.steps=24", "train.global_batch=8", "mesh.island=2", "sync.island.kind=co2", "sync.island.every=4", "snapshot.every=24"});
  train_layout({recipe, 4, folder / "whole"});
  train_layout({with(recipe, {"memory.zero=1"}), 4, folder / "sharded"});
  findings.at_most("1. outer state sharded over the ranks of an island: largest difference to state that each keeps whole", 0,
                   largest_difference(snapshot_tensors(folder / "whole", "model"), snapshot_tensors(folder / "sharded", "model")), 1e-6);
}

// 2. Virtual time on links over which one sum of the whole model takes as long as 8 steps.
void overlap(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr int kFew = 4;
  constexpr double kStep = 0.01;
  PilotRun run{.seed = options.seed, .islands = kFew, .steps = 240, .finish = false};
  run.step_s = kStep;
  run.link = {.latency = std::chrono::milliseconds(1), .jitter = 0, .contention = comm::LinkModel::Contention::per_nic};
  run.link.bytes_per_s = 2.0 * (kFew - 1) / kFew * 4 * static_cast<double>(Perceptron(1).flat().numel()) / (8 * kStep);
  PilotRun trial = run;  // as measured, with the buffer that travels: bandwidth alone does not say how long
  trial.sync = diloco(10, 1, 0);
  trial.steps = 40;
  run.link.bytes_per_s *= run_pilot(trial).stalls[0] / 4 / (8 * kStep);
  const auto measured = [&](const char* name, const sync::SyncOptions& sync) {
    PilotRun own = run;
    own.sync = sync;
    const PilotEnd end = run_pilot(own);
    const double ratio = end.seconds[0] / (kStep * static_cast<double>(run.steps)), stall = end.stalls[0] / end.seconds[0];
    log.info("{}: {:.3f} of the time without communication, {:.1f} % of it waiting", name, ratio, 100 * stall);
    return std::pair(ratio, stall);
  };
  const auto [ddp, of_ddp] = measured("an all-reduce at every step", {});
  const auto [blocking, of_blocking] = measured("averaging that waits, every 10 steps", diloco(10, 1, 0));
  const auto [hidden, of_hidden] = measured("CO2, 10 steps", late(10, 0.2, sync::StalenessGap::off));
  const auto [shown, of_shown] = measured("CO2, 4 steps", late(4, 0.2, sync::StalenessGap::off));
  findings.at_least("2. time of a step to one without communication, an all-reduce at every step (4 islands, virtual time)", 1, ddp, 4);
  findings.at_least("2. likewise, averaging that waits, every 10 steps", 1, blocking, 1.5);
  findings.at_most("2. likewise, CO2 with rounds of 10 steps", 1, hidden, 1.06);
  findings.at_most("2. share of the time that an island waits, CO2 with rounds of 10 steps", of_blocking, of_hidden, 0.03);
  findings.at_least("2. likewise, rounds of 4 steps, too short to hide it (the wait is real)", of_hidden, of_shown, 0.3);
}

// 3. Test loss of the pilot, over four draws. Without the clip, so that the gap is seen by itself: where rounds break for want of it, the
// clip mends half of what it would.
void quality(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr int kDraws = 4;
  CurvesPicture picture{.title = "Pilot, 8 islands: test loss of the model", .across = "step", .up = "test loss"};
  const auto loss = [&](const char* name, const sync::SyncOptions& sync) {
    std::vector<double> losses;
    for (int draw = 0; draw < kDraws; ++draw) {
      const PilotRun run{.seed = options.seed * 10 + static_cast<uint64_t>(draw), .sync = sync, .loss_every = draw == 0 ? 60 : 0};
      const PilotEnd end = run_pilot(run);
      losses.push_back(score_of(run, end.global_parameters[0]).loss);
      if (draw == 0) picture.curves.push_back({name, curve_colour(picture.curves.size()), end.losses[0]});
    }
    log.info("{}: test loss {:.4f}", name, std::accumulate(losses.begin(), losses.end(), 0.0) / kDraws);
    return losses;
  };
  const std::vector<double> plain = loss("averaging that waits, 12", diloco(12, 1, 0));
  sync::SyncOptions defaults{.kind = "co2"};
  defaults.co2.every = 12;
  const std::vector<double> usual = loss("12, default keys", defaults);
  const std::vector<double> mild = loss("12, momentum 0.2, gap off", late(12, 0.2, sync::StalenessGap::off, 0));
  const std::vector<double> long_off = loss("48, momentum 0.5, gap off", late(48, 0.5, sync::StalenessGap::off, 0)),
                            long_ratio = loss("48, momentum 0.5", late(48, 0.5, sync::StalenessGap::ratio, 0));
  const std::vector<double> high_off = loss("12, momentum 0.9, gap off", late(12, 0.9, sync::StalenessGap::off, 0)),
                            high_ratio = loss("12, momentum 0.9", late(12, 0.9, sync::StalenessGap::ratio, 0));
  const std::vector<double> clipped = loss("12, momentum 0.9, gap off, clip 1", late(12, 0.9, sync::StalenessGap::off));
  at_most_ratio(findings, "3. rounds of 12, momentum 0.2, gap off: test loss to that of averaging that waits", mild, plain, 1.05);
  // Dividing by the gap costs something where rounds are mild. The sheet's pilot has 0.854 against 0.788: 1.084.
  at_most_ratio(findings,
                "3. rounds of 12, default keys (momentum 0.2, divided by the gap, clip 1): test loss to that of averaging that waits",
                usual, plain, 1.10);
  at_most_ratio(findings, "3. rounds of 48, momentum 0.5: divided by the gap, to not", long_ratio, long_off, 0.85);
  at_most_ratio(findings, "3. rounds of 12, momentum 0.9: divided by the gap, to not", high_ratio, high_off, 0.7);
  at_most_ratio(findings, "3. likewise, the gap off: with the clip, to without", clipped, high_off, 1);
  write_curves(options.pictures, "co2-loss", picture);
}

// 4, 5. Delays change nothing; the clip binds.
void safety(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("delays and clip");
  PilotRun run{.seed = options.seed, .islands = 4, .steps = 120, .sync = late(12, 0.5, sync::StalenessGap::ratio)};
  const PilotEnd fast = run_pilot(run);
  run.step_s = 0.01;
  run.link = {.latency = std::chrono::milliseconds(50), .latency_sigma = 1.5};
  const PilotEnd slow = run_pilot(run);
  findings.skip("4. a thread that reads the buffer late changes no bit",
                "on the CPU the update is encoded before the step goes on, so no other thread reads it: a GPU run has that thread");
  findings.at_most("4. messages delayed by 50 ms and more, at random, on the CPU: largest difference of the model", 0,
                   (fast.global_parameters[2] - slow.global_parameters[2]).abs().max().item<double>(), 0);
  constexpr double kClip = 0.01;
  PilotRun clipped{
      .seed = options.seed, .islands = 4, .steps = 120, .sync = late(12, 0.5, sync::StalenessGap::off, kClip), .constant_rate = true};
  double most = 0;
  const Starts starts = starts_of(clipped);
  const std::vector<at::Tensor>& rounds = starts.at(0);
  for (size_t i = 1; i < rounds.size(); ++i) most = std::max(most, (rounds[i] - rounds[i - 1]).abs().max().item<double>());
  const double bound = kClip * clipped.rate * 12;
  findings.at_most("5. clip 0.01: the furthest that any number moves in a round, to clip x rate x steps", bound, most,
                   bound + 2.4e-7);  // weights are rounded to fp32 where they are added up
  findings.at_least("5. likewise: the clip binds", bound, most, bound * 0.9);
}

}  // namespace

void prove_co2(const ProofOptions& options, Findings& findings, base::Log& log) {
  exactness(options, findings, log);
  overlap(options, findings, log);
  quality(options, findings, log);
  safety(options, findings, log);
}

}  // namespace cairn::study
