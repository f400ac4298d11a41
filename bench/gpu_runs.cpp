#include "bench/gpu_runs.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/metrics.h"
#include "study/process.h"

namespace cairn::study {
namespace {

std::string fault_of(const ProcessResult& ended, double limit_s) {
  if (ended.exit_code == 0) return {};
  if (ended.seconds >= limit_s) return fmt::format("ended after {:.0f} s, its time", limit_s);
  constexpr size_t kTail = 600;
  const size_t from = ended.output.size() > kTail ? ended.output.size() - kTail : 0;
  return fmt::format("exit code {}: {}", ended.exit_code, std::string_view(ended.output).substr(from));
}

// When a run began on the watch's clock, and when its steps ended, counted from there.
struct Times {
  double began_s = 0;
  std::vector<double> steps_s;
};

void fill_in(GpuRun& run, Times times, int64_t steps, const GpuMonitor& watch, int64_t bytes_before) {
  const bool ended_early = run.fault.empty() && std::ssize(times.steps_s) < steps;  // asked to end, it did
  if (ended_early) run.fault = fmt::format("its time was up after {} of {} steps", times.steps_s.size(), steps);
  if (ended_early && times.steps_s.size() > 1) times.steps_s.pop_back();  // ours saves its state before it tells of its last step
  if (times.steps_s.empty()) return;
  run.first_step_s = times.steps_s.front();
  const auto n = static_cast<int64_t>(times.steps_s.size());
  const int64_t first = n / 3;  // kernels are chosen and clocks settle
  const double from_s = times.steps_s[static_cast<size_t>(first)], to_s = times.steps_s.back();
  run.steady_steps = n - 1 - first;
  run.steady_s = to_s - from_s;
  if (const auto whole = watch.between(times.began_s, times.began_s + to_s)) run.device_bytes_most = whole->bytes_most - bytes_before;
  if (const auto span = watch.between(times.began_s + from_s, times.began_s + to_s)) {
    run.joules = span->joules;
    run.clock_mhz = span->clock_mhz;
  }
}

std::vector<std::string> recipe_of(const GpuCase& one, const GpuInputs& inputs, int64_t steps) {
  std::vector<std::string> sets{fmt::format("data.tokenizer_file=\"{}\"", inputs.tokenizer),
                                fmt::format("data.length={}", one.length),
                                fmt::format("model.embed={}", one.embed),
                                fmt::format("model.layers={}", one.layers),
                                fmt::format("model.heads={}", one.heads),
                                fmt::format("model.kv_heads={}", one.kv_heads),
                                fmt::format("model.head_dim={}", one.head_dim),
                                fmt::format("model.mlp={}", one.mlp),
                                fmt::format("model.tied={}", one.tied),
                                fmt::format("train.global_batch={}", one.batch),
                                fmt::format("train.steps={}", steps),
                                fmt::format("train.seed={}", kGpuSeed),
                                fmt::format("optim.learning_rate={}", one.learning_rate()),
                                fmt::format("optim.warmup_steps={}", GpuCase::kWarmup)};
  for (const char* set : {"model.rope_theta=500000.0",
                          "model.norm_eps=1e-5",
                          "data.sampler=\"sequential\"",
                          "data.packing=\"stream\"",
                          "train.precision=\"bf16\"",
                          "train.parameters=\"bf16\"",
                          "train.gradients=\"bf16\"",
                          "optim.moments=\"bf16\"",
                          "optim.rounding=\"nearest\"",
                          "optim.beta1=0.9",
                          "optim.beta2=0.95",
                          "optim.eps=1e-8",
                          "optim.weight_decay=0.1",
                          "optim.max_grad_norm=0.0",
                          "optim.schedule=\"constant\"",
                          "eval.fraction=0.0",
                          "snapshot.every=0",
                          "snapshot.last=false",
                          "log.samples=0",
                          "log.trace=false",
                          "log.tensorboard=false"})
    sets.emplace_back(set);
  return sets;
}

base::Json settings_of(const GpuCase& one, const GpuPlace& place) {
  base::Json settings;
  settings["device"] = place.device;
  settings["threads"] = place.threads;
  settings["inductor_cache"] = place.scratch + "/inductor-" + one.name;
  settings["vocab"] = one.vocab;
  settings["embed"] = one.embed;
  settings["layers"] = one.layers;
  settings["heads"] = one.heads;
  settings["kv_heads"] = one.kv_heads;
  settings["head_dim"] = one.head_dim;
  settings["mlp"] = one.mlp;
  settings["tied"] = one.tied;
  settings["batch"] = one.batch;
  settings["length"] = one.length;
  settings["rope_theta"] = 500000.0;
  settings["learning_rate"] = one.learning_rate();
  settings["warmup"] = GpuCase::kWarmup;
  return settings;
}

// The lines of JSON in what a peer said; others are warnings of libraries, and the last may be torn.
std::vector<base::Json> objects_in(const std::string& file) {
  std::vector<base::Json> found;
  if (!std::filesystem::exists(file)) return found;
  std::istringstream text(base::read_file(file, 64 << 20));
  for (std::string line; std::getline(text, line);)
    if (base::Json one = base::parse_json(line); one.is_object()) found.push_back(std::move(one));
  return found;
}

ProcessResult run_peer(const base::Json& settings, const GpuPlace& place, const std::string& said, double limit_s,
                       const std::function<void(int)>& on_start = {}) {
  const std::string script = fmt::format("{}/gpu_peer.py", CAIRN_BENCH_FOLDER);
  return run_program_for(std::chrono::duration<double>(limit_s), {place.python, script, base::compact(settings)}, said, on_start);
}

}  // namespace

void refuse_set_of_case(const std::string& set) {
  const std::string key = set.substr(0, set.find('='));
  for (const std::string& one : recipe_of(gpu_cases().front(), {}, 1))
    if (one.substr(0, one.find('=')) == key) base::fail_input("--set {}: the case says what {} is, and the peer has the same", set, key);
}

GpuRun run_gpu_ours(const GpuCase& one, const GpuInputs& inputs, int64_t steps, const GpuPlace& place, const GpuMonitor& watch,
                    double limit_s, bool fp8) {
  const std::string out = place.scratch + "/ours";
  std::filesystem::remove_all(out);
  std::vector<std::string> command{place.program, "train", "--device", place.device, "--data", inputs.tokens, "--out", out};
  for (const std::string& set : recipe_of(one, inputs, steps)) command.insert(command.end(), {"--set", set});
  for (const std::string& set : place.sets) command.insert(command.end(), {"--set", set});
  if (fp8) command.insert(command.end(), {"--set", "train.fp8=\"all\""});
  if (!place.kernels.empty()) command.insert(command.end(), {"--set", "log.kernels=true"});
  GpuRun run{.who = fp8 ? "fp8" : "ours"};
  Times times;
  const int64_t before = watch.bytes_now();
  const ProcessResult ended = run_program_for(std::chrono::duration<double>(limit_s), command, place.scratch + "/ours.log",
                                              [&](int) { times.began_s = watch.now_s(); });
  run.fault = fault_of(ended, limit_s);
  if (!place.kernels.empty() && std::filesystem::exists(out + "/kernels.txt"))
    base::write_atomically(place.kernels, base::read_file(out + "/kernels.txt", 1 << 20));
  const std::string metrics = out + "/metrics.jsonl";
  double startup_s = 0;
  for (const base::MetricsRow& row : std::filesystem::exists(metrics) ? base::read_metrics(metrics) : std::vector<base::MetricsRow>{}) {
    if (row.has("startup_seconds")) {
      startup_s = row.number("startup_seconds");
      double rest = startup_s;
      for (const std::string part : {"device", "data", "model"}) {
        const double took = row.number(fmt::format("startup_{}_seconds", part));
        run.startup.emplace_back(part, took);
        rest -= took;
      }
      run.startup.insert(run.startup.begin(), std::pair<std::string, double>("program", rest));
      run.startup.emplace_back("first step", row.number("seconds"));
    }
    times.steps_s.push_back(startup_s + row.number("seconds"));
    run.losses.push_back(row.number("loss"));
    run.allocator_bytes_most = std::max(run.allocator_bytes_most, row.integer("memory_bytes"));
    if (row.has("memory_tensors_most_bytes")) run.tensor_bytes_most = row.integer("memory_tensors_most_bytes");
  }
  fill_in(run, std::move(times), steps, watch, before);
  return run;
}

GpuRun run_gpu_peer(const GpuCase& one, const GpuInputs& inputs, int64_t steps, const GpuPlace& place, const GpuMonitor& watch,
                    double limit_s, bool compiled) {
  base::Json settings = settings_of(one, place);
  settings["mode"] = "train";
  settings["compiled"] = compiled;
  settings["steps"] = steps;
  settings["tokens"] = inputs.tokens;
  settings["weights"] = inputs.weights;
  if (!place.kernels.empty()) settings["kernels"] = place.kernels;
  GpuRun run{.who = compiled ? "compiled" : "eager"};
  Times times;
  const int64_t before = watch.bytes_now();
  const std::string said = place.scratch + "/peer.log";
  const ProcessResult ended = run_peer(settings, place, said, limit_s, [&](int) { times.began_s = watch.now_s(); });
  run.fault = fault_of(ended, limit_s);
  double started_s = 0;
  for (const base::Json& line : objects_in(said)) {
    if (line.contains("start")) {
      for (const char* part : {"python", "torch", "device", "model"}) {
        run.startup.emplace_back(part, line["start"][part].get<double>());
        started_s += run.startup.back().second;
      }
    } else if (line.contains("step")) {
      times.steps_s.push_back(line["at"].get<double>());
      run.losses.push_back(line["loss"].is_number() ? line["loss"].get<double>() : std::numeric_limits<double>::quiet_NaN());
      if (times.steps_s.size() == 1) run.startup.emplace_back("first step", times.steps_s[0] - started_s);
    } else if (line.contains("memory")) {
      run.tensor_bytes_most = line["memory"]["tensors"].get<int64_t>();
      run.allocator_bytes_most = line["memory"]["allocator"].get<int64_t>();
    }
  }
  fill_in(run, std::move(times), steps, watch, before);
  return run;
}

GpuCeiling measure_gpu_ceiling(const GpuPlace& place, double limit_s) {
  const bool cuda = place.device == "cuda";
  base::Json settings;
  settings["mode"] = "ceiling";
  settings["device"] = place.device;
  settings["inductor_cache"] = place.scratch;
  settings["size"] = cuda ? 8192 : 256;
  settings["repeats"] = cuda ? 20 : 1;
  settings["seconds"] = cuda ? 4.0 : 0.2;
  const std::string said = place.scratch + "/ceiling.log";
  GpuCeiling found{.fault = fault_of(run_peer(settings, place, said, limit_s), limit_s), .size = settings["size"].get<int64_t>()};
  for (const base::Json& line : objects_in(said)) {
    if (!line.contains("ceiling")) continue;
    found.tflops = line["ceiling"]["tflops"].get<double>();
    found.burst_tflops = line["ceiling"]["burst_tflops"].get<double>();
    found.device = line["ceiling"]["device"].get<std::string>();
    found.torch = line["ceiling"]["torch"].get<std::string>();
  }
  return found;
}

}  // namespace cairn::study
