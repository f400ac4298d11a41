// Cairn's own claims: layout and interruption do not change a run. One process is the baseline.
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "base/log.h"
#include "base/metrics.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "proofs/layout_run.h"
#include "study/claims.h"
#include "train/train.h"

namespace cairn::study {
namespace {

constexpr int64_t kSteps = 50;

using Losses = std::vector<double>;

base::Recipe small_recipe(const ProofOptions& options, int64_t steps) {
  base::Recipe recipe = base::Recipe::parse(R"(
    [model]
    layers = 2
    embed = 48
    heads = 4
    mlp = 96
    [data]
    vocab = 300
    length = 32
    stories_bytes = 200000
    [train]
    global_batch = 7
    [snapshot]
    every = 20
    [log]
    tensorboard = false
    trace = false
    samples = 0
  )",
                                            "same-answer");
  recipe.set("train.seed", static_cast<int64_t>(options.seed), "--seed");
  recipe.set("train.steps", steps, "proof");
  if (!options.data.empty()) recipe.set("data.path", options.data, "--data");
  return recipe;
}

// Trains in `out` on threads joined by a virtual network, and gives the losses as metrics.jsonl holds them.
Losses train_on(int ranks, const ProofOptions& options, const std::filesystem::path& out, bool resume) {
  const base::Stop never;
  const auto ended = comm::LocalNetwork(ranks).run([&](comm::World& world) {
    train::Start start;
    start.out = out;
    start.resume = resume;
    train::run(world, small_recipe(options, kSteps), start, {}, never);
  });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
  Losses losses;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) losses.push_back(row.number("loss"));
  return losses;
}

double largest_difference(const Losses& a, const Losses& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace

void prove_same_answer(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::filesystem::path scratch = options.scratch;
  const Losses one = train_on(1, options, scratch / "one", false);
  findings.at_most("loss falls over 50 steps on one rank (last over first)", 1, one.back() / one.front(), 0.9);
  for (int ranks : {2, 3, 4}) {
    log.info("{} ranks", ranks);
    const Losses many = train_on(ranks, options, scratch / fmt::format("ranks-{}", ranks), false);
    findings.at_most(fmt::format("largest loss difference over 50 steps, {} ranks against 1, 7 samples a step", ranks), 0,
                     largest_difference(one, many), 1e-5);
  }
  for (int ranks : {1, 3}) {
    log.info("resumed on {} ranks", ranks);
    const std::filesystem::path copy = scratch / fmt::format("resumed-{}", ranks);
    copy_up_to(scratch / "one", copy, 20);
    const Losses resumed = train_on(ranks, options, copy, true);
    if (ranks == 1) {
      findings.at_most("largest loss difference after a resume at step 20 on the same ranks", 0, largest_difference(one, resumed), 0);
    } else {
      const Losses first_ten(resumed.begin() + 20, resumed.begin() + 30), expected(one.begin() + 20, one.begin() + 30);
      findings.at_most("largest difference of the first 10 losses after a resume on 3 ranks", 0, largest_difference(expected, first_ten),
                       1e-6);
    }
  }
}

}  // namespace cairn::study
