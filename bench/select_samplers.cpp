// What losses of single samples cost: training under seta and infobatch against training under the shuffled sampler, tokens/s. Both runs go
// over the same text with the same batches; epochs under seta are shorter.
#include <filesystem>

#include <fmt/format.h>

#include "base/log.h"
#include "base/metrics.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "bench/select_parts.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/device.h"
#include "train/train.h"

namespace cairn::study {
namespace {

constexpr int kSamplerRepetitions = 5;
constexpr double kSamplerGoal = 0.97;
constexpr int64_t kFirstCounted = 5;  // steps that allocate memory come before

base::Recipe sampler_recipe(const BenchOptions& options, const std::string& sampler) {
  base::Recipe recipe = base::Recipe::parse(R"(
    model = {layers = 4, embed = 128, heads = 4, kv_heads = 4, mlp = 384}
    data = {tokenizer = "bytes", length = 128, stories_bytes = 60000}
    train = {steps = 0, epochs = 4, global_batch = 8}
    log = {tensorboard = false, trace = false, samples = 0}
    eval = {every = 0, samples = 8}
    snapshot = {every = 0, last = false}
  )",
                                            "select bench");
  for (const std::string& set : options.sets) recipe.set(set);
  if (!options.data.empty()) recipe.set("data.path", options.data, "--data");
  recipe.set("data.sampler", sampler, "bench");
  return recipe;
}

double tokens_per_s(const base::Recipe& recipe, const std::filesystem::path& out, bool on_gpu) {
  for (const std::exception_ptr& error : comm::LocalNetwork(1).run([&](comm::World& world) {
         train::run(world, recipe, {.out = out, .cache = {}, .device = on_gpu ? "cuda" : "cpu", .terminal = nullptr}, {}, base::Stop());
       }))
    if (error) std::rethrow_exception(error);
  const std::vector<base::MetricsRow> rows = base::read_metrics(out / "metrics.jsonl");
  const base::MetricsRow &first = rows.at(kFirstCounted), &last = rows.back();
  return (last.number("tokens") - first.number("tokens")) / (last.number("seconds") - first.number("seconds"));
}

}  // namespace

std::vector<BenchRow> bench_samplers(const BenchOptions& options, base::Log& log) {
  const bool on_gpu = kernels::can_use_cuda();
  std::vector<BenchRow> rows;
  for (const std::string sampler : {"seta", "infobatch"}) {
    const std::string name = sampler + " against shuffled";
    if (!options.only.empty() && options.only != name) continue;
    std::vector<double> ours, peer;
    for (int i = 0; i < kSamplerRepetitions; ++i) {
      const auto measure = [&](const std::string& which) {
        return tokens_per_s(sampler_recipe(options, which),
                            std::filesystem::path(options.scratch) / fmt::format("{}-{}-{}", sampler, which, i), on_gpu);
      };
      if (i % 2 == 0) ours.push_back(measure(sampler));
      peer.push_back(measure("shuffled"));
      if (i % 2 == 1) ours.push_back(measure(sampler));
      log.info("{}: {:.0f} tokens/s, shuffled {:.0f}", sampler, ours.back(), peer.back());
    }
    rows.push_back(compare(name, ours, peer, "tokens/s", Better::higher, kSamplerGoal));
  }
  return rows;
}

}  // namespace cairn::study
