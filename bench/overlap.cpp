// `cairn bench overlap`: what hides behind computation on slow links, by the switch that turns it off. Real processes on links that --links
// slows down; both sides are ours.
//   recompute       GPipe, 4 stages, links of 20 ms: recomputation while a stage waits for the gradient, against after its arrival
//   recompute-full  the same with recompute.mode = full, all blocks of a stage ahead
//   prefetch        ZeRO 3, 2 ranks, 20 ms and 200 Mbit/s: parameters gathered ahead of their use, against when they are used
#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/log.h"
#include "base/metrics.h"
#include "study/benches.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int kSteps = 9, kWarmUp = 3, kRounds = 3;

struct OverlapCase {
  std::string name, links;
  int ranks = 2;
  int64_t batch = 0, length = 0;
  double share = 1;  // the most that a step with overlap may take of one without
  std::vector<std::string> sets, on, off;
};

std::vector<OverlapCase> overlap_cases() {
  const std::vector<std::string> pipeline{"mesh.pp=4",       "pipeline.schedule=gpipe", "pipeline.micro_batches=4", "model.layers=8",
                                          "model.embed=512", "model.heads=8",           "model.kv_heads=8",         "model.mlp=1408"};
  std::vector<std::string> stage = pipeline, full = pipeline;
  stage.emplace_back("recompute.mode=stage");
  full.emplace_back("recompute.mode=full");
  return {{"recompute", "20ms", 4, 16, 256, 0.92, stage, {"recompute.overlap=first"}, {"recompute.overlap=none"}},
          {"recompute-full", "20ms", 4, 16, 256, 0.92, full, {"recompute.overlap=all"}, {"recompute.overlap=none"}},
          {"prefetch",
           "20ms,200Mbit",
           2,
           8,
           256,
           0.8,
           {"memory.zero=3", "model.layers=6", "model.embed=256", "model.heads=4", "model.kv_heads=4", "model.mlp=512", "data.vocab=512"},
           {"memory.prefetch_blocks=1"},
           {"memory.prefetch_blocks=0"}}};
}

struct OverlapRun {
  double step_s = 0, loss = 0;
};

OverlapRun train_overlap(const BenchOptions& options, const OverlapCase& c, const std::vector<std::string>& with) {
  const std::string out = fmt::format("{}/run", options.scratch);
  std::filesystem::remove_all(out);
  std::vector<std::string> argv{options.program, "train", "--nproc", std::to_string(c.ranks), "--out", out, "--links", c.links};
  if (!options.data.empty()) argv.insert(argv.end(), {"--data", options.data});
  std::vector<std::string> sets{fmt::format("train.steps={}", kSteps),
                                fmt::format("train.global_batch={}", c.batch),
                                fmt::format("data.length={}", c.length),
                                "eval.every=0",
                                "log.samples=0",
                                "snapshot.every=0"};
  sets.insert(sets.end(), c.sets.begin(), c.sets.end());
  sets.insert(sets.end(), with.begin(), with.end());
  for (const std::string& set : sets) argv.insert(argv.end(), {"--set", set});
  const ProcessResult ended = run_program(argv, options.scratch + "/log");
  if (ended.exit_code != 0) base::fail_input("{} ended with {}: {}", c.name, ended.exit_code, ended.output);
  OverlapRun run;
  std::vector<double> seconds;
  for (const base::MetricsRow& row : base::read_metrics(std::filesystem::path(out) / "metrics.jsonl")) {
    if (row.integer("step") > kWarmUp) seconds.push_back(static_cast<double>(c.batch * c.length) / row.number("tokens_per_s"));
    run.loss = row.number("loss");
  }
  std::sort(seconds.begin(), seconds.end());
  CAIRN_CHECK(!seconds.empty(), "{} left no steps", c.name);
  run.step_s = seconds[seconds.size() / 2];
  return run;
}

}  // namespace

std::vector<BenchRow> bench_overlap(const BenchOptions& options, base::Log& log) {
  std::vector<BenchRow> rows;
  std::vector<std::string> names;
  for (const OverlapCase& c : overlap_cases()) {
    names.push_back(c.name);
    if (!options.only.empty() && options.only != c.name) continue;
    std::vector<double> on, off;
    for (int round = 0; round < kRounds; ++round) {
      const OverlapRun without = train_overlap(options, c, c.off), with = train_overlap(options, c, c.on);
      CAIRN_CHECK(with.loss == without.loss, "{}: losses of {} and {}: not the same work", c.name, with.loss, without.loss);
      on.push_back(1e3 * with.step_s);
      off.push_back(1e3 * without.step_s);
      log.info("{}: {:.0f} ms a step, without overlap {:.0f} ms", c.name, on.back(), off.back());
    }
    rows.push_back(compare(c.name, on, off, "ms a step", Better::lower, 1 / c.share));
  }
  if (rows.empty()) base::fail_input("--case {}: the cases are {}", options.only, fmt::join(names, ", "));
  return rows;
}

}  // namespace cairn::study
