// `cairn bench fp8`: what fp8 linear layers cost in quality. The same model on the same text, in bf16 and in fp8: the held-out
// loss may be 0.3 % higher, or by two standard deviations of what other seeds come to in bf16.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/version.h"
#include "kernels/aten.h"
#include "kernels/gemm/fp8_cuda.h"
#include "study/benches.h"
#include "study/curves_svg.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr double kLeastTolerance = 0.003;
constexpr int kSeeds = 3;

struct Fp8Case {
  std::string name;
  int64_t steps;
  std::vector<std::string> sets;
};

const std::vector<Fp8Case>& fp8_cases() {
  static const std::vector<Fp8Case> list{
      {"small",
       300,
       {"model.layers=4", "model.embed=128", "model.heads=4", "model.kv_heads=2", "model.mlp=352", "data.vocab=1024", "data.length=64",
        "train.global_batch=16", "optim.learning_rate=0.002", "optim.warmup_steps=30", "eval.samples=128"}},
      {"A",
       2000,
       {"model.layers=12", "model.embed=768", "model.heads=12", "model.kv_heads=12", "model.mlp=2048", "data.vocab=50304",
        "data.length=1024", "train.global_batch=64", "optim.learning_rate=0.0006", "optim.warmup_steps=100", "eval.samples=128"}}};
  return list;
}

// The result of one run.
struct Fp8Run {
  std::vector<std::pair<double, double>> held_out;  // step, loss
  double end() const { return held_out.back().second; }
  double best() const {
    return std::min_element(held_out.begin(), held_out.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->second;
  }
};

class Comparison {
 public:
  Comparison(const Fp8Case& one, const BenchOptions& options, base::Log& log)
      : one_(one), options_(options), log_(log), steps_(options.steps > 0 ? options.steps : one.steps) {
    if (options.out.empty()) return;
    base::make_folder(options.out);
    kept_ = (std::filesystem::path(options.out) / "fp8-runs.jsonl").string();
  }

  std::vector<BenchRow> measure() {
    const Fp8Run& plain = run("none", 1);
    const Fp8Run &layers = run("layers", 1), &all = run("all", 1);
    std::vector<BenchRow> rows;
    for (const auto& [name, coded] : {std::pair<std::string, const Fp8Run&>("layers", layers), {"all", all}})
      for (const auto& [what, of] :
           {std::pair<std::string, double (Fp8Run::*)() const>("at the end", &Fp8Run::end), {"at best", &Fp8Run::best}}) {
        const double ours = (coded.*of)(), peer = (plain.*of)();
        // Other seeds are asked only where the least tolerance is not enough.
        const double chance = ours <= peer * (1 + kLeastTolerance) ? 0 : deviation_of_seeds(of);
        rows.push_back(compare(fmt::format("{} fp8 {}, held-out loss {} of {} steps{}", one_.name, name, what, steps_,
                                           chance > 0 ? fmt::format(" (bf16 seeds: {:.2f} %)", 100 * chance) : ""),
                               {ours}, {peer}, "nats", Better::lower, 1 - std::max(kLeastTolerance, 2 * chance)));
      }
    draw();
    return rows;
  }

 private:
  using Key = std::pair<std::string, int>;  // train.fp8, seed

  // From the same seed: the same first weights and samples.
  const Fp8Run& run(const std::string& fp8, int seed) {
    Fp8Run& found = runs_[{fp8, seed}];
    if (found.held_out.empty()) found = remembered(fp8, seed);
    if (found.held_out.empty()) {
      found = train(fp8, seed);
      remember(fp8, seed, found);
    }
    return found;
  }

  // Relative, over bf16 from kSeeds seeds.
  double deviation_of_seeds(double (Fp8Run::*of)() const) {
    std::vector<double> all;
    for (int seed = 1; seed <= kSeeds; ++seed) all.push_back((run("none", seed).*of)());
    const double mean = std::accumulate(all.begin(), all.end(), 0.0) / kSeeds;
    double squares = 0;
    for (const double loss : all) squares += (loss - mean) * (loss - mean);
    return std::sqrt(squares / (kSeeds - 1)) / mean;
  }

  Fp8Run train(const std::string& fp8, int seed) const {
    const std::filesystem::path out = std::filesystem::path(options_.scratch) / fmt::format("{}-{}", fp8, seed);
    const bool gpu = at::hasCUDA() && kernels::has_fp8(at::Device(at::kCUDA, 0));
    std::vector<std::string> command{options_.program, "train", "--device", gpu ? "cuda" : "cpu", "--out", out.string()};
    if (!options_.data.empty()) command.insert(command.end(), {"--data", options_.data});
    std::vector<std::string> sets = one_.sets;
    sets.insert(sets.end(),
                {fmt::format("train.steps={}", steps_), fmt::format("train.seed={}", seed), fmt::format("train.fp8=\"{}\"", fp8),
                 fmt::format("eval.every={}", std::max<int64_t>(1, steps_ / 20)), "eval.fraction=0.05", "train.precision=\"bf16\"",
                 "snapshot.every=0", "snapshot.last=false", "log.samples=0", "log.trace=false", "log.tensorboard=false"});
    for (const std::string& set : sets) command.insert(command.end(), {"--set", set});
    const ProcessResult ended = run_program(command, (std::filesystem::path(options_.scratch) / "train.log").string());
    if (ended.exit_code != 0) base::fail_input("a run of bench fp8 failed: {}", ended.output);
    Fp8Run run;
    for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) {
      if (row.has("eval_loss")) run.held_out.emplace_back(static_cast<double>(row.integer("step")), row.number("eval_loss"));
    }
    CAIRN_CHECK(!run.held_out.empty(), "a run without a held-out loss");
    std::filesystem::remove_all(out);
    log_.info("{}, {}, seed {}: held-out loss {:.4f} at the end, {:.4f} at best, in {:.0f} s", one_.name,
              fp8 == "none" ? "bf16" : "fp8 " + fp8, seed, run.end(), run.best(), ended.seconds);
    return run;
  }

  // With --out, runs that have ended are not made again: a bench of half an hour may be stopped and go on.
  base::Json name_of(const std::string& fp8, int seed) const {
    const bool gpu = at::hasCUDA() && kernels::has_fp8(at::Device(at::kCUDA, 0));
    return {{"case", one_.name}, {"steps", steps_},   {"data", options_.data},       {"fp8", fp8},
            {"seed", seed},      {"sets", one_.sets}, {"program", base::build_id()}, {"device", gpu ? "cuda" : "cpu"}};
  }
  Fp8Run remembered(const std::string& fp8, int seed) const {
    Fp8Run found;
    if (kept_.empty() || !std::filesystem::exists(kept_)) return found;
    std::istringstream lines(base::read_file(kept_, 16 << 20));
    for (std::string line; std::getline(lines, line);) {
      const base::Json one = base::parse_json(line);
      if (!one.is_object() || one.value("run", base::Json()) != name_of(fp8, seed)) continue;
      found.held_out.clear();
      for (const base::Json& point : one["held_out"]) found.held_out.emplace_back(point[0].get<double>(), point[1].get<double>());
    }
    if (!found.held_out.empty()) log_.info("{}, {}, seed {}: as it was run before ({})", one_.name, fp8, seed, kept_);
    return found;
  }
  void remember(const std::string& fp8, int seed, const Fp8Run& run) const {
    if (kept_.empty()) return;
    base::Json line{{"run", name_of(fp8, seed)}, {"held_out", run.held_out}};
    std::ofstream(kept_, std::ios::app) << base::compact(line) << "\n";
  }

  void draw() const {
    if (options_.out.empty()) return;
    CurvesPicture picture{.title = fmt::format("{}: held-out loss", one_.name), .across = "step", .up = "loss"};
    for (const auto& [key, run] : runs_)
      picture.curves.push_back({.label = key.first == "none" ? "bf16" : "fp8 " + key.first,
                                .colour = key.first == "none"  ? "#e08a3c"
                                          : key.first == "all" ? "#5e96de"
                                                               : "#57a773",
                                .points = run.held_out});
    write_curves(options_.out, fmt::format("fp8-loss-{}", one_.name), picture);
  }

  const Fp8Case& one_;
  const BenchOptions& options_;
  base::Log& log_;
  int64_t steps_;
  std::string kept_;  // the file of runs; empty: none
  std::map<Key, Fp8Run> runs_;
};

}  // namespace

std::vector<BenchRow> bench_fp8(const BenchOptions& options, base::Log& log) {
  const std::string wanted = options.only.empty() ? "small" : options.only;
  std::vector<std::string> names;
  for (const Fp8Case& one : fp8_cases()) {
    if (one.name == wanted) return Comparison(one, options, log).measure();
    names.push_back(one.name);
  }
  base::fail_unknown("case", wanted, names);
}

}  // namespace cairn::study
