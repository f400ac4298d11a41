// PERP on one GPU: a decoder of a billion parameters, with layers as wide as those of 7B models, loses half of their weights and is
// retrained, once by a sliver of its parameters and once by all that are left.
#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "proofs/gpu_runs.h"
#include "proofs/perp_parts.h"
#include "proofs/prune_runs.h"
#include "snapshot/snapshot.h"

namespace cairn::study {
namespace {

constexpr int64_t kGpuRetrainSteps = 500, kGpuFullSteps = 40;
constexpr const char* kGpuData = R"(
[data]
tokenizer = "bytes"
length = 2048
stories_bytes = 20000000
[train]
precision = "bf16"
global_batch = 2
[eval]
every = 0
samples = 32
[snapshot]
every = 0
[log]
samples = 0
tensorboard = false
trace = false
)";

fs::path train_a_billion(const ProofOptions& options, base::Log& log) {
  Assignments sets{
      "model.embed=4096",     "model.layers=5",        "model.heads=32",       "model.kv_heads=32",           "model.mlp=11008",
      "model.tied=false",     "data.tokenizer=bytes",  "data.length=2048",     "data.stories_bytes=20000000", "train.global_batch=8",
      "train.precision=bf16", "train.parameters=bf16", "train.gradients=bf16", "optim.moments=bf16",          "eval.every=0",
      "snapshot.every=0",     "log.samples=0",         "log.trace=false",      "log.tensorboard=false"};
  sets.push_back(fmt::format("train.seed={}", options.seed));
  must_train_on_gpu(options, log, "billion", {.sets = sets, .steps = 100, .limit_s = 240});
  return fs::path(options.scratch) / "billion";
}

struct GpuPruned {
  PruneResult result;
  double seconds = 0;
  double tokens_per_s = 0;      // of retraining, the median of the last two thirds of its steps
  int64_t optimizer_bytes = 0;  // that the snapshot of the retraining has
};

GpuPruned prune_on_gpu(const ProofOptions& options, const fs::path& from, const std::string& name, const Assignments& sets) {
  Assignments all{"model.from=" + from.string(), fmt::format("train.seed={}", options.seed), fmt::format("prune.seed={}", options.seed)};
  if (!options.data.empty()) all.push_back("data.path=" + options.data);
  all.insert(all.end(), sets.begin(), sets.end());
  const fs::path out = fs::path(options.scratch) / name;
  const base::RealClock clock;
  GpuPruned found{.result = prune_on_ranks(read_prune({.text = kGpuData, .name = "perp"}, all), {.out = out, .device = "cuda"})};
  found.seconds = base::seconds(clock.now());
  std::vector<double> rates;
  for (const base::MetricsRow& row : base::read_metrics(out / "run" / "metrics.jsonl")) rates.push_back(row.number("tokens_per_s"));
  rates.erase(rates.begin(), rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 3));
  std::ranges::sort(rates);
  found.tokens_per_s = rates.at(rates.size() / 2);
  base::Log quiet = base::Log::quiet();
  for (const snapshot::TensorEntry& one : snapshot::open_latest((out / "run").string(), quiet).value().entries("optimizer"))
    found.optimizer_bytes += std::accumulate(one.shape.begin(), one.shape.end(), snapshot::bytes_of(one.dtype), std::multiplies<>());
  return found;
}

}  // namespace

void prove_perp_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  const fs::path dense = train_a_billion(options, log);
  const GpuPruned sliver = prune_on_gpu(options, dense, "sliver", {fmt::format("prune.recover.steps={}", kGpuRetrainSteps)}),
                  full = prune_on_gpu(options, dense, "full",
                                      {R"(prune.recover.train=["full"])", fmt::format("prune.recover.steps={}", kGpuFullSteps)});
  const PruneRound& round = sliver.result.rounds.back();
  log.info("{} parameters, {} of them trained ({:.2f} %); losses: dense {:.4f}, pruned {:.4f}, retrained {:.4f}, merged {:.4f}",
           sliver.result.parameters, round.trained,
           100.0 * static_cast<double>(round.trained) / static_cast<double>(sliver.result.parameters), sliver.result.dense_loss,
           round.pruned_loss, round.recovered_loss, round.merged_loss);
  log.info("retraining: {:.0f} tokens/s by a sliver, {:.0f} by all weights", sliver.tokens_per_s, full.tokens_per_s);
  findings.at_least("H200: parameters of the model", 1e9, static_cast<double>(sliver.result.parameters), 1e9);
  findings.at_most(fmt::format("H200: minutes that pruning at 50 % and {} steps of retraining take", kGpuRetrainSteps), 10,
                   sliver.seconds / 60, 10);
  findings.at_most("H200: loss of the merged model, against the pruned one", round.pruned_loss, round.merged_loss,
                   round.pruned_loss - 0.01);
  findings.at_most("H200: bytes of optimizer state in the snapshot, of those of full retraining", 1,
                   static_cast<double>(sliver.optimizer_bytes) / static_cast<double>(full.optimizer_bytes), 0.01);
  findings.at_least("H200: tokens/s of retraining, of those of full retraining", 1, sliver.tokens_per_s / full.tokens_per_s, 1.1);
}

}  // namespace cairn::study
