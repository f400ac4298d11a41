// `cairn bench gpu`: training in bf16 on one GPU, ours and plain PyTorch (compiled, eager) in turn, same model, weights, tokens and rule.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "bench/gpu_case.h"
#include "bench/gpu_runs.h"
#include "bench/gpu_table.h"
#include "bench/peer_python.h"
#include "kernels/adamw.h"
#include "kernels/aten.h"
#include "kernels/gemm/fp8_cuda.h"
#include "study/benches.h"
#include "study/curves_svg.h"
#include "study/gpu_monitor.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr double kLeastPart_s = 12;  // a part that has less time left is not begun
constexpr double kEnding_s = 5;      // what a program may take to end once its time is up

// The time that a case has, handed out part by part.
class Budget {
 public:
  Budget(const GpuMonitor& watch, double limit_s) : watch_(watch), total_s_(limit_s), end_s_(watch.now_s() + limit_s) {}
  double left_s() const { return end_s_ - watch_.now_s(); }
  // A share of all, and no more than is left. 0: too little to begin with.
  double part_s(double share) const {
    const double part = std::min(share * total_s_, left_s() - kEnding_s);
    return part < kLeastPart_s ? 0 : part;
  }

 private:
  const GpuMonitor& watch_;
  double total_s_, end_s_;
};

class OneCase {
 public:
  OneCase(const GpuCase& one, const BenchOptions& options, const GpuPlace& place, const GpuMonitor& watch, base::Log& log)
      : one_(one),
        options_(options),
        place_(place),
        watch_(watch),
        log_(log),
        budget_(watch, options.limit_s > 0 ? options.limit_s : one.limit_s),
        steps_(options.steps > 0 ? options.steps : one.steps),
        fp8_(place.device == "cpu" || kernels::has_fp8(at::Device(at::kCUDA, 0))) {}

  // Ours and compiled whole, since their losses are laid over each other; eager for its speed; then again in turn while there is time.
  void measure() {
    const GpuInputs inputs = write_gpu_inputs(one_, steps_, place_.scratch);
    const int64_t few = std::min(steps_, std::max<int64_t>(12, steps_ / 8));
    const auto ours = [&](int64_t steps, double share, bool fp8 = false) {
      return keep(fp8 ? "fp8" : "ours", share,
                  [&](double limit_s) { return run_gpu_ours(one_, inputs, steps, place_, watch_, limit_s, fp8); });
    };
    const auto peer = [&](int64_t steps, double share, bool compiled) {
      return keep(compiled ? "compiled" : "eager", share,
                  [&](double limit_s) { return run_gpu_peer(one_, inputs, steps, place_, watch_, limit_s, compiled); });
    };
    double round_s = ours(steps_, 0.45) + peer(steps_, 0.6, true);
    if (fp8_) round_s += ours(steps_, 0.45, true);
    if (options_.kernels) watch_kernels(inputs);
    peer(few, 0.35, false);
    while (rounds_ < kRoundsMost && budget_.left_s() > std::max(kLeastPart_s, 0.6 * round_s)) {
      ours(few, 0.3);
      peer(few, 0.3, true);
      if (fp8_) ours(few, 0.3, true);
      ++rounds_;
    }
    std::filesystem::remove_all(place_.scratch + "/ours");
    if (!inputs.weights.empty()) std::filesystem::remove(inputs.weights);
  }

  void show(const GpuCeiling& ceiling) const {
    const std::string table = gpu_table(one_, runs_, ceiling);
    log_.info("{}\n{}", one_.name, table);
    if (options_.out.empty()) return;
    base::write_atomically(std::filesystem::path(options_.out) / fmt::format("gpu-{}.txt", one_.name), table);
    CurvesPicture picture{.title = fmt::format("Shape {}: {} x {} tokens a step, bf16", one_.name, one_.batch, one_.length),
                          .across = "step",
                          .up = "training loss"};
    for (const auto& [who, colour] : {std::pair{"compiled", "#e08a3c"}, std::pair{"ours", "#5e96de"}, std::pair{"fp8", "#57a773"}}) {
      const GpuRun* const run = longest(who);
      if (run == nullptr || run->losses.size() < 2) continue;
      Curve curve{.label = who, .colour = colour, .points = {}};
      for (size_t i = 0; i < run->losses.size(); ++i) curve.points.emplace_back(static_cast<double>(i + 1), run->losses[i]);
      picture.curves.push_back(std::move(curve));
    }
    if (!picture.curves.empty()) write_curves(options_.out, fmt::format("gpu-loss-{}", one_.name), picture);
  }

  void add_rows(std::vector<BenchRow>& rows) const {
    const auto add = [&](const std::string& what, const std::string& peer, auto&& of, const std::string& unit, Better better, double goal,
                         size_t pairs_most = kRoundsMost, const std::string& who = "ours") {
      const std::string name = fmt::format("{} {}{}, {}", one_.name, who == "ours" ? "" : who + " ", what, peer);
      std::vector<double> mine = values(who, of), theirs = values(peer, of);
      const size_t pairs = std::min({mine.size(), theirs.size(), pairs_most});
      if (pairs == 0) {
        if (!missing(what)) rows.push_back({.case_name = name, .unit = unit, .goal = goal, .measured = false});
        return;
      }
      mine.resize(pairs), theirs.resize(pairs);
      rows.push_back(compare(name, mine, theirs, unit, better, goal));
    };
    const auto rate = [&](const GpuRun& run) { return run.tokens_per_s(one_); };
    const auto start = [](const GpuRun& run) { return run.first_step_s; };
    const auto memory = [](const GpuRun& run) { return static_cast<double>(run.tensor_bytes_most) / (1 << 30); };
    const auto thrift = [&](const GpuRun& run) {
      return run.joules > 0 ? static_cast<double>(run.steady_steps * one_.tokens()) / run.joules : 0;
    };
    add("tokens/s", "compiled", rate, "tokens/s", Better::higher, one_.goals.bf16);
    if (fp8_) add("tokens/s", "compiled", rate, "tokens/s", Better::higher, one_.goals.fp8, kRoundsMost, "fp8");
    add("tokens/s", "eager", rate, "tokens/s", Better::higher, 1.1);
    add("peak memory", "compiled", memory, "GiB", Better::lower, 1 / one_.goals.memory);
    add("start to end of step 1", "compiled", start, "s", Better::lower, 1.0, 1);  // later compilations find the first one's work
    add("tokens per joule", "compiled", thrift, "tokens/J", Better::higher, 1.0);
    compare_losses(rows, "ours");
    if (fp8_) compare_losses(rows, "fp8");
  }

 private:
  static constexpr size_t kRoundsMost = 3;

  // Runs a part and keeps what came of it; the seconds it took. What goes wrong is told, and the others go on.
  template <typename Part>
  double keep(const std::string& who, double share, const Part& part) {
    const double limit_s = budget_.part_s(share), began_s = watch_.now_s();
    if (limit_s == 0) {
      log_.warn("{}, {}: not run, the case's time is up (--limit)", one_.name, who);
      return 0;
    }
    try {
      runs_.push_back(part(limit_s));
      const GpuRun& run = runs_.back();
      const double took_s = watch_.now_s() - began_s;
      log_.info("{}, {}: {} steps in {:.1f} s, {:.0f} tokens/s", one_.name, who, run.losses.size(), took_s, run.tokens_per_s(one_));
      if (!run.fault.empty()) log_.warn("{}, {}: {}", one_.name, who, run.fault);
      write_down(run);
      return took_s;
    } catch (const std::exception& error) {
      log_.warn("{}, {}: {}", one_.name, who, error.what());
      return watch_.now_s() - began_s;
    }
  }

  // A profiler costs time, so that these runs count for nothing else.
  void watch_kernels(const GpuInputs& inputs) const {
    constexpr int64_t kSteps = 24;
    for (const std::string who : {"ours", "compiled", "fp8"}) {
      const double limit_s = budget_.part_s(0.5);
      if (limit_s == 0 || (who == "fp8" && !fp8_)) continue;
      GpuPlace place = place_;
      place.kernels = std::filesystem::absolute(std::filesystem::path(options_.out) / fmt::format("kernels-{}-{}.txt", one_.name, who));
      const GpuRun run = who == "compiled" ? run_gpu_peer(one_, inputs, kSteps, place, watch_, limit_s, true)
                                           : run_gpu_ours(one_, inputs, kSteps, place, watch_, limit_s, who == "fp8");
      if (run.fault.empty())
        log_.info("{}, {}: its kernels are in {}", one_.name, who, place.kernels);
      else
        log_.warn("{}, {}, kernels: {}", one_.name, who, run.fault);
    }
  }

  // As soon as it is known: whatever happens later, it was not for nothing.
  void write_down(const GpuRun& run) const {
    if (options_.out.empty()) return;
    base::OrderedJson startup = base::OrderedJson::object();
    for (const auto& [part, seconds] : run.startup) startup[part] = seconds;
    base::OrderedJson row = {{"case", one_.name},
                             {"who", run.who},
                             {"fault", run.fault},
                             {"tokens_per_s", run.tokens_per_s(one_)},
                             {"first_step_s", run.first_step_s},
                             {"startup", startup},
                             {"tensor_bytes_most", run.tensor_bytes_most},
                             {"allocator_bytes_most", run.allocator_bytes_most},
                             {"device_bytes_most", run.device_bytes_most},
                             {"steady_steps", run.steady_steps},
                             {"steady_s", run.steady_s},
                             {"joules", run.joules},
                             {"clock_mhz", run.clock_mhz},
                             {"losses", run.losses}};
    std::ofstream(std::filesystem::path(options_.out) / "gpu.jsonl", std::ios::app) << base::compact(row) << "\n";
  }

  const GpuRun* longest(const std::string& who) const {
    const GpuRun* found = nullptr;
    for (const GpuRun& run : runs_)
      if (run.who == who && (found == nullptr || run.losses.size() > found->losses.size())) found = &run;
    return found;
  }

  // Of each run that has one, in the order they were made.
  template <typename Of>
  std::vector<double> values(const std::string& who, const Of& of) const {
    std::vector<double> found;
    for (const GpuRun& run : runs_)
      if (const double value = run.who == who ? of(run) : 0; value > 0) found.push_back(value);
    return found;
  }

  // On a CPU nobody counts the tensors' bytes, and without NVML nobody the joules.
  bool missing(const std::string& what) const {
    const bool counted = std::any_of(runs_.begin(), runs_.end(), [](const GpuRun& run) { return run.joules > 0; });
    return (what == "peak memory" && place_.device == "cpu") || (what == "tokens per joule" && !counted);
  }

  void compare_losses(std::vector<BenchRow>& rows, const std::string& who) const {
    const GpuRun *ours = longest(who), *peer = longest("compiled");
    if (peer == nullptr || peer->losses.empty()) peer = longest("eager");
    if (!one_.same_weights || ours == nullptr || peer == nullptr) return;
    const size_t n = std::min(ours->losses.size(), peer->losses.size());
    if (n < 3) return;
    if (std::abs(ours->losses[0] - peer->losses[0]) > 0.02)
      log_.warn("{}: first losses of {:.4f} and {:.4f}: not the same work", one_.name, ours->losses[0], peer->losses[0]);
    const auto end = [n](const GpuRun& run) {
      const auto last = run.losses.begin() + static_cast<std::ptrdiff_t>(n), first = last - static_cast<std::ptrdiff_t>(n / 3);
      return std::accumulate(first, last, 0.0) / static_cast<double>(n / 3);
    };
    rows.push_back(compare(fmt::format("{} {}loss, last third of {} steps", one_.name, who == "ours" ? "" : who + " ", n), {end(*ours)},
                           {end(*peer)}, "nats", Better::lower, 0.995));
  }

  const GpuCase& one_;
  const BenchOptions& options_;
  const GpuPlace& place_;
  const GpuMonitor& watch_;
  base::Log& log_;
  Budget budget_;
  int64_t steps_;
  bool fp8_;  // this device multiplies in fp8; a CPU imitates it
  size_t rounds_ = 1;
  std::vector<GpuRun> runs_;
};

}  // namespace

std::vector<BenchRow> bench_gpu(const BenchOptions& options, base::Log& log) {
  if (options.precision != "bf16")
    base::fail_input("--precision {}: the bench has bf16 only so far, which is the default", options.precision);
  const std::vector<GpuCase> cases = gpu_cases_named(options.only);
  const bool gpu = kernels::has_cuda_kernels() && at::hasCUDA();
  if (!gpu && options.only != "tiny")
    base::fail_input("bench gpu: {}; --case tiny tries the bench out on the CPU",
                     kernels::has_cuda_kernels() ? "no usable GPU was found" : "this build has no CUDA: build it with CAIRN_PRESET=cuda");
  for (const std::string& set : options.sets) refuse_set_of_case(set);
  if (options.kernels && (!gpu || options.out.empty()))
    base::fail_input("--kernels: {}", gpu ? "writes tables: say where with --out" : "is for GPUs: leave it out");
  if (!options.out.empty()) base::make_folder(options.out);
  const GpuPlace place{.device = gpu ? "cuda" : "cpu",
                       .program = options.program,
                       .python = python_with_torch(options, log),
                       .scratch = options.scratch,
                       .threads = 2,
                       .sets = options.sets};
  const GpuMonitor watch;
  std::optional<GpuCeiling> ceiling;
  std::vector<BenchRow> rows;
  for (const GpuCase& one : cases) {
    OneCase measured(one, options, place, watch, log);
    if (!ceiling) {
      ceiling = measure_gpu_ceiling(place, 60);
      if (!ceiling->fault.empty()) log.warn("the ceiling was not measured: {}", ceiling->fault);
    }
    measured.measure();
    measured.show(*ceiling);
    measured.add_rows(rows);
  }
  return rows;
}

}  // namespace cairn::study
