// The ladder wiring against the standard one, real processes along tp. Training: on links that are slowed down until messages take about
// half of a standard step. Generation: on links of 3 ms. Both are ours; what differs is what hides behind what.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "base/metrics.h"
#include "study/benches.h"
#include "study/generation_rates.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int kLayers = 8, kSteps = 12, kUncounted = 3, kRounds = 3;
constexpr int kMessagesOfABlock = 4;  // of the standard wiring: gathered and summed, forward and backward

// Seconds of a step, the median of those that count.
double step_seconds(const BenchOptions& options, int tp, const std::string& wiring, const std::string& links) {
  const std::string out = fmt::format("{}/run", options.scratch);
  std::filesystem::remove_all(out);
  std::vector<std::string> argv{options.program, "train", "--nproc", std::to_string(tp), "--out", out, "--data", options.data};
  if (options.data.empty()) argv.resize(argv.size() - 2);
  if (!links.empty()) argv.insert(argv.end(), {"--links", links});
  for (const std::string& set :
       {fmt::format("mesh.tp={}", tp), "model.residual=" + wiring, fmt::format("model.layers={}", kLayers), std::string("model.embed=256"),
        std::string("model.heads=8"), std::string("model.kv_heads=8"), std::string("model.mlp=688"), fmt::format("train.steps={}", kSteps),
        std::string("train.global_batch=4"), std::string("eval.every=0"), std::string("log.samples=0"), std::string("snapshot.every=0")})
    argv.insert(argv.end(), {"--set", set});
  const ProcessResult ended = run_program(argv, options.scratch + "/log");
  if (ended.exit_code != 0) base::fail_input("{} ended with {}: {}", wiring, ended.exit_code, ended.output);
  std::vector<double> seconds;
  for (const base::MetricsRow& row : base::read_metrics(std::filesystem::path(out) / "metrics.jsonl"))
    if (row.integer("step") > kUncounted) seconds.push_back(1 / row.number("tokens_per_s"));
  std::sort(seconds.begin(), seconds.end());
  CAIRN_CHECK(!seconds.empty(), "{} left no steps", wiring);
  return seconds[seconds.size() / 2] * 4 * 128;
}

}  // namespace

std::vector<BenchRow> bench_ladder(const BenchOptions& options, base::Log& log) {
  std::vector<BenchRow> rows;
  for (const int tp : {2, 4, 8}) {
    const std::string name = fmt::format("tp-{}", tp);
    if (!options.only.empty() && options.only != name) continue;
    const double unhindered = step_seconds(options, tp, "standard", "");
    const double latency_ms = 1e3 * unhindered / (kMessagesOfABlock * 2 * kLayers);
    const std::string links = fmt::format("{:.3f}ms", latency_ms);
    log.info("{}: a standard step takes {:.0f} ms; links of {}", name, unhindered * 1e3, links);
    std::vector<double> standard, ladder;
    for (int round = 0; round < kRounds; ++round) {
      standard.push_back(1e3 * step_seconds(options, tp, "standard", links));
      ladder.push_back(1e3 * step_seconds(options, tp, "ladder", links));
      log.info("  standard {:.0f} ms, ladder {:.0f} ms", standard.back(), ladder.back());
    }
    rows.push_back(compare(name, ladder, standard, "ms a step", Better::lower, 1.2));
  }
  for (const int tp : {2, 4}) {
    const std::string name = fmt::format("generate-tp-{}", tp);
    if (!options.only.empty() && options.only != name) continue;
    log.info("{}: cairn generate on links of 3 ms", name);
    const WiringRates rates = measure_generation(options.program, options.scratch, {.tp = tp, .links = "3ms", .rounds = kRounds}, log);
    rows.push_back(compare(name, rates.ladder, rates.standard, "tokens/s", Better::higher, 1.3));
  }
  if (rows.empty()) base::fail_input("--case {}: the cases are tp-2, tp-4, tp-8, generate-tp-2 and generate-tp-4", options.only);
  return rows;
}

}  // namespace cairn::study
