// Hecate: experts with one home, and copies of busy ones for a step. Training is the product's, on ranks that are threads; the baseline is
// one rank that holds all experts, and plain expert parallelism. Times are virtual (hecate_steps.cpp).
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "parallel/expert_copies/copy_plan.h"
#include "parallel/expert_copies/load_window.h"
#include "proofs/hecate_steps.h"
#include "proofs/layout_run.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

constexpr int kHecateSteps = 20;

// 8 experts of width 64, two for each token, Adam.
base::Recipe hecate_recipe(const ProofOptions& options, int ranks, const Assignments& sets) {
  const base::Recipe recipe =
      small_decoder(options, {"model.kind=mixtral", "model.layers=2", "model.embed=64", "model.heads=4", "model.kv_heads=2", "model.mlp=64",
                              "model.moe.experts=8", "train.global_batch=16", fmt::format("train.steps={}", kHecateSteps),
                              fmt::format("snapshot.every={}", kHecateSteps / 2), "snapshot.keep=2", "optim.schedule=constant"});
  return with(ranks == 1 ? recipe
                         : with(recipe, {"expert.placement=fssdp", fmt::format("mesh.ep={}", ranks),
                                         fmt::format("expert.node_ranks={}", ranks / 2), "expert.reshard_every=0"}),
              sets);
}

double sum_of(const std::filesystem::path& out, const std::string& metric) {
  double sum = 0;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) sum += row.number(metric);
  return sum;
}

struct HecateForm {
  std::string name;
  Assignments sets;
  std::string happened;  // a metric that shows that the form did something
};

const std::vector<HecateForm> kHecateForms{
    {"copies", {}, "expert_copies"},
    {"calibration", {"expert.calibrate=true", "expert.memory_slots=4"}, "expert_calibrated"},
    {"re-sharding every 4 steps", {"expert.reshard_every=4"}, "expert_moved"},
    {"copies sent again for backward", {"expert.rematerialize=true"}, "expert_copies"},
    {"all of these",
     {"expert.calibrate=true", "expert.memory_slots=4", "expert.reshard_every=4", "expert.rematerialize=true"},
     "expert_moved"}};

void exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::filesystem::path scratch = options.scratch;
  const Trained one = train_layout({.recipe = hecate_recipe(options, 1, {}), .ranks = 1, .out = scratch / "one"});
  for (const int ranks : {4, 8}) {
    for (const HecateForm& form : kHecateForms) {
      log.info("{} ranks: {}", ranks, form.name);
      const std::filesystem::path out = scratch / fmt::format("{}-{}", ranks, form.name);
      const base::Recipe recipe = hecate_recipe(options, ranks, form.sets);
      const Trained many = train_layout({.recipe = recipe, .ranks = ranks, .out = out});
      const std::string where = fmt::format("({} ranks, {})", ranks, form.name);
      findings.at_most("1. losses of 20 steps against one rank, relative " + where, 0, largest_relative_difference(many.losses, one.losses),
                       1e-5);
      findings.at_most("1. parameters after 20 steps against one rank " + where, 0, largest_difference(many.parameters, one.parameters),
                       1e-4);
      findings.at_least("1. it happened: sum of " + form.happened + " " + where, 0, sum_of(out, form.happened), 1);
    }
  }
  log.info("resumed in the middle");
  const std::filesystem::path whole = scratch / "8-all of these", resumed = scratch / "resumed";
  copy_up_to(whole, resumed, kHecateSteps / 2);
  const Trained again =
      train_layout({.recipe = hecate_recipe(options, 8, kHecateForms.back().sets), .ranks = 8, .out = resumed, .resume = true});
  findings.at_most("2. parameters of a run that was resumed at step 10, against the one that went on (8 ranks, all forms)", 0,
                   largest_difference(again.parameters, snapshot_tensors(whole, "model")), 0);
  findings.at_most(
      "2. the same on one rank: its losses, relative", 0,
      [&] {
        const std::filesystem::path alone = scratch / "resumed-alone";
        copy_up_to(whole, alone, kHecateSteps / 2);
        return largest_relative_difference(
            train_layout({.recipe = hecate_recipe(options, 1, {}), .ranks = 1, .out = alone, .resume = true}).losses, one.losses);
      }(),
      1e-5);
}

void planning(const ProofOptions& options, Findings& findings) {
  const base::Random random = base::Random(options.seed).for_purpose("loads");
  std::vector<int64_t> counts;
  for (uint64_t i = 0; i < uint64_t{24} * 64; ++i) counts.push_back(static_cast<int64_t>(random.below(i, 1000)));
  parallel::LoadWindow window(24, 64);
  window.add(counts);
  const parallel::NodeOf nodes{0, 0, 0, 0, 1, 1, 1, 1};
  const mesh::Ragged homes = mesh::even_ragged(0, 64, 8);
  const base::RealClock clock;
  double best = INFINITY;
  for (int round = 0; round < 20; ++round) {
    const double begun = base::seconds(clock.now());
    for (int layer = 0; layer < 24; ++layer) parallel::plan_copies(homes, window.load(layer), nodes, {.overlap = 8, .slots = 2});
    best = std::min(best, base::seconds(clock.now()) - begun);
  }
  findings.at_most("5. milliseconds to plan the copies of 24 layers of 64 experts on 8 ranks, best of 20", 1, best * 1e3, 1);
}

}  // namespace

void prove_hecate(const ProofOptions& options, Findings& findings, base::Log& log) {
  exactness(options, findings, log);
  hecate_steps(options, findings, log);
  planning(options, findings);
  findings.skip("H200: one grouped product a layer over all held experts", "is what every layer does: `cairn bench moe` measures it");
}

}  // namespace cairn::study
