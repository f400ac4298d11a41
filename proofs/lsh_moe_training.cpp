// LSH-MoE in training: a decoder with 16 experts a layer learns text with rows as they are, with centroids alone, and with centroids and
// residuals; then steps are timed on processes whose cards send 10 MB/s.
#include "proofs/lsh_moe_training.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/metrics.h"
#include "proofs/sampler_runs.h"
#include "study/claims.h"
#include "study/process.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTextBytes = 1'500'000, kLossSteps = 200, kTimedSteps = 8;
constexpr double kLshRunLimitS = 900;

Assignments expert_decoder(const ProofOptions& options, uint64_t seed) {
  Assignments sets = sampler_texts(options, kTextBytes);
  for (const char* set :
       {"model.kind=mixtral", "model.layers=4", "model.embed=128", "model.heads=4", "model.kv_heads=4", "model.moe.experts=16",
        "model.moe.top_k=2", "model.moe.width=128", "data.tokenizer=bytes", "data.length=256", "train.global_batch=8",
        "optim.learning_rate=0.002", "snapshot.every=0", "log.samples=0", "log.tensorboard=false", "log.trace=false"})
    sets.emplace_back(set);
  sets.push_back(fmt::format("train.seed={}", seed));
  return sets;
}

struct ExpertRun {
  double held_out = 0;
  double rate = 0;  // centroids over rows, mean over the last third of the steps
  double step_s = 0;
};

ExpertRun train_experts(const ProofOptions& options, const std::string& name, const Assignments& sets,
                        const std::vector<std::string>& arguments) {
  const fs::path out = fs::path(options.scratch) / name;
  std::vector<std::string> command{options.program, "train", "--out", out.string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  for (const std::string& set : sets) command.insert(command.end(), {"--set", set});
  const ProcessResult ended = run_program_for(std::chrono::duration<double>(kLshRunLimitS), command, out.string() + ".log");
  if (ended.exit_code != 0)
    throw Error(Error::Kind::broken_invariant, fmt::format("{} ended with exit code {}: {}", name, ended.exit_code, ended.output));
  ExpertRun found;
  std::vector<double> steps, rates;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) {
    steps.push_back(row.number("step_seconds"));
    rates.push_back(row.has("expert_compression") ? row.number("expert_compression") : 1);
    if (row.has("eval_loss")) found.held_out = row.number("eval_loss");
  }
  const auto last = static_cast<std::ptrdiff_t>(rates.size() - rates.size() / 3);
  for (auto one = rates.begin() + last; one != rates.end(); ++one)
    found.rate += *one / static_cast<double>(rates.end() - rates.begin() - last);
  std::nth_element(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2), steps.end());
  found.step_s = steps[steps.size() / 2];
  return found;
}

const Assignments kLsh{"expert.compress=lsh", "expert.hashes=4"},
    kResiduals{"expert.compress=lsh", "expert.hashes=4", "expert.residual=true"};

Assignments joined(Assignments a, const Assignments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Losses do not depend on links, so these runs have fast ones.
void losses_after_equal_steps(const ProofOptions& options, uint64_t seed, Findings& findings, base::Log& log) {
  const Assignments sets = joined(expert_decoder(options, seed), {fmt::format("train.steps={}", kLossSteps), "eval.every=0"});
  const std::vector<std::string> ranks{"--nproc", "2", "--mesh", "ep=2"};
  const auto arm = [&](const std::string& name, const Assignments& more) {
    const ExpertRun run = train_experts(options, fmt::format("{}-{}", name, seed), joined(sets, more), ranks);
    log.info("seed {}, {}: held-out loss {:.4f}, centroids over rows {:.3f}", seed, name, run.held_out, run.rate);
    return run;
  };
  const ExpertRun plain = arm("plain", {}), lsh = arm("centroids", kLsh), residuals = arm("residuals", kResiduals);
  const std::string of = fmt::format("5. seed {}, {} steps on text: ", seed, kLossSteps);
  findings.at_most(of + "held-out loss, of that with rows as they are", plain.held_out, lsh.held_out / plain.held_out, 1.02);
  findings.at_least(of + "held-out loss without residuals, less that with them", lsh.held_out, lsh.held_out - residuals.held_out, 1e-4);
  findings.at_most(of + "centroids over rows in the last third of the steps", 1, lsh.rate, 0.35);
}

}  // namespace

void prove_lsh_training(const ProofOptions& options, Findings& findings, base::Log& log) {
  const uint64_t seeds = options.full ? 3 : 1;
  for (uint64_t i = 0; i < seeds; ++i) losses_after_equal_steps(options, options.seed + i, findings, log);

  // Steps of a model that has learned something, as most of a run's are.
  Assignments sets = expert_decoder(options, options.seed);
  std::erase_if(sets, [](const std::string& set) { return set.starts_with("model.") || set.starts_with("data.tokenizer"); });
  const std::string trained = (fs::path(options.scratch) / fmt::format("plain-{}", options.seed)).string();
  sets = joined(sets, {"model.from=" + trained, fmt::format("train.steps={}", kTimedSteps), "eval.every=0", "eval.fraction=0.0",
                       "train.global_batch=16"});
  const std::vector<std::string> ranks{"--nproc", "4", "--mesh", "ep=4", "--links", "1ms,80Mbit,card"};
  const ExpertRun plain = train_experts(options, "timed-plain", sets, ranks),
                  lsh = train_experts(options, "timed-lsh", joined(sets, kLsh), ranks);
  log.info("4 processes whose cards send 10 MB/s: {:.2f} s a step, {:.2f} s with centroids ({:.3f} of the rows)", plain.step_s, lsh.step_s,
           lsh.rate);
  findings.at_most("5. 4 processes whose cards send 10 MB/s: time of a step, of that with rows as they are", plain.step_s,
                   lsh.step_s / plain.step_s, 0.65);
}

}  // namespace cairn::study
