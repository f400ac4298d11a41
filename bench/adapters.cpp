// `cairn bench adapters`: steps of training adapters, ours and the package peft in turn: same base model, batch, optimizer and threads.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "bench/peer_python.h"
#include "study/benches.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int kRounds = 3;
constexpr int64_t kLength = 256, kBatch = 8, kRank = 8;

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run_cairn(const BenchOptions& options, const std::string& out, const std::vector<std::string>& sets) {
  std::vector<std::string> command{options.program, "train", "--out", out};
  for (const std::string& one : sets) command.insert(command.end(), {"--set", one});
  for (const char* one :
       {"eval.fraction=0", "log.samples=0", "log.tensorboard=false", "optim.schedule=\"constant\"", "optim.warmup_steps=0"})
    command.insert(command.end(), {"--set", one});
  for (const std::string& one : {fmt::format("data.length={}", kLength), fmt::format("train.global_batch={}", kBatch)})
    command.insert(command.end(), {"--set", one});
  const ProcessResult ended = run_program(command, options.scratch + "/cairn.log");
  if (ended.exit_code != 0) base::fail_input("our run failed: {}", ended.output);
}

// Tokens per second of a run's steps after the first.
double rate_of(const BenchOptions& options, const std::string& base_model, int64_t steps, const std::vector<std::string>& adapter) {
  const std::string out = options.scratch + "/adapter";
  std::filesystem::remove_all(out);
  std::vector<std::string> sets{"model.from=" + base_model,
                                fmt::format("train.steps={}", steps),
                                "snapshot.every=0",
                                "snapshot.last=false",
                                R"(model.adapter.targets=["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"])",
                                fmt::format("model.adapter.rank={}", kRank)};
  sets.insert(sets.end(), adapter.begin(), adapter.end());
  run_cairn(options, out, sets);
  std::vector<double> rates;
  for (const base::MetricsRow& row : base::read_metrics(out + "/metrics.jsonl"))
    if (row.integer("step") > 1) rates.push_back(row.number("tokens_per_s"));
  return median_of(rates);
}

double rate_of_peer(const BenchOptions& options, const std::string& python, const std::string& folder, int64_t steps) {
  base::Json settings;
  settings["folder"] = folder, settings["steps"] = steps, settings["length"] = kLength, settings["batch"] = kBatch;
  settings["rank"] = kRank, settings["threads"] = 2;
  const ProcessResult ended =
      run_program({python, std::string(CAIRN_BENCH_FOLDER) + "/adapters_peer.py", base::compact(settings)}, options.scratch + "/peer.log");
  if (ended.exit_code != 0) base::fail_input("the peer's run failed: {}", ended.output);
  const base::Json result = base::parse_json(ended.output.substr(ended.output.rfind('{')));
  if (!result.is_object()) base::fail_input("the peer's run printed no JSON: {}", ended.output);
  std::vector<double> rates;
  for (size_t i = 1; i < result["seconds"].size(); ++i)
    rates.push_back(static_cast<double>(kBatch * kLength) / result["seconds"][i].get<double>());
  return median_of(rates);
}

}  // namespace

std::vector<BenchRow> bench_adapters(const BenchOptions& options, base::Log& log) {
  const std::string version = base::read_file(std::string(CAIRN_BENCH_FOLDER) + "/../deps/torch.txt", 4096);
  const size_t pin = version.find("torch==");
  const std::string torch = version.substr(pin, version.find('\n', pin) - pin);
  const std::string python = peer_python(options, log, "peft", {torch, "transformers", "peft", "numpy"}, "about 5 GB, a few minutes");
  const std::string run = options.scratch + "/base", folder = options.scratch + "/base-model";
  run_cairn(options, run,
            {"train.steps=1", "data.vocab=4096", "model.embed=320", "model.layers=6", "model.heads=5", "model.kv_heads=5",
             "model.head_dim=64", "model.mlp=864", "model.tied=false"});
  const ProcessResult exported = run_program({options.program, "snapshot", "export", run, "--out", folder}, options.scratch + "/cairn.log");
  if (exported.exit_code != 0) base::fail_input("the export failed: {}", exported.output);
  const int64_t steps = options.steps > 0 ? options.steps : 8;
  std::vector<double> lora, mos, peer;
  for (int round = 0; round < kRounds; ++round) {
    log.info("round {} of {}", round + 1, kRounds);
    lora.push_back(rate_of(options, folder, steps, {}));
    mos.push_back(rate_of(options, folder, steps,
                          {"model.adapter.kind=mos", "model.adapter.equivalent_rank=2", "model.adapter.shards_per_vector=4"}));
    peer.push_back(rate_of_peer(options, python, folder, steps));
  }
  return {compare("LoRA of rank 8 on all projections, against peft", lora, peer, "tokens/s", Better::higher, 1 / 0.85),
          compare("MoS of rank 8 in the memory of rank 2, against our LoRA", mos, lora, "tokens/s", Better::higher, 1 / 1.15)};
}

}  // namespace cairn::study
