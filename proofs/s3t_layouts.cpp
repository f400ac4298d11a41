// Stages on other layouts, and what their ranks send.
#include <filesystem>

#include <fmt/format.h>

#include "base/log.h"
#include "kernels/aten.h"
#include "proofs/layout_run.h"
#include "proofs/s3t_parts.h"
#include "study/claims.h"

namespace cairn::study {

namespace fs = std::filesystem;
using unlearn::Store;

void prove_s3t_layouts(const ProofOptions& options, const S3tStores& stores, Findings& findings, base::Log& log) {
  struct Layout {
    std::string name;
    int ranks;
    std::vector<std::string> sets;
    double tolerance;
  };
  const std::vector<std::string> short_run{"unlearning.shards=1", "unlearning.budget=1", "unlearning.slices=2", "train.epochs=1"};
  const auto losses = [&](const Layout& layout, double rate = 0.001) {
    std::vector<std::string> sets = short_run;
    sets.insert(sets.end(), layout.sets.begin(), layout.sets.end());
    sets.push_back(fmt::format("optim.learning_rate={}", rate));
    const Store store = stores.make(fmt::format("layout-{}-{}", layout.name, rate), sets);
    stores.train(store, layout.ranks);
    std::vector<double> found;
    for (const auto& [name, artifact] : unlearn::read_artifacts(store)) found.push_back(artifact.loss);
    return found;
  };
  const std::vector<double> one = losses({"1", 1, {}, 0});
  for (const Layout& layout :
       {Layout{"dp=4", 4, {"mesh.dp=4"}, 1e-5}, Layout{"dp=4, ZeRO 1", 4, {"mesh.dp=4", "memory.zero=1"}, 1e-5},
        Layout{"dp=4, ZeRO 2", 4, {"mesh.dp=4", "memory.zero=2"}, 1e-5}, Layout{"dp=4, ZeRO 3", 4, {"mesh.dp=4", "memory.zero=3"}, 1e-5},
        Layout{"pp=2", 2, {"mesh.pp=2", "train.micro_batch=5"}, 1e-5}, Layout{"tp=2", 2, {"mesh.tp=2"}, 1e-5},
        Layout{"recomputation", 1, {"recompute.mode=full"}, 1e-5}, Layout{"bf16", 1, {"train.precision=bf16"}, 0.02}})
    findings.at_most(fmt::format("7. {}: largest relative difference of stages' losses to one rank", layout.name), 0,
                     largest_relative_difference(losses(layout), one), layout.tolerance);
  // The rate of all other items is so high that rounding grows from step to step.
  constexpr double kHighRate = 0.01;
  log.info("7. at a learning rate of {} (reported): dp=4 {:.1e}, tp=2 {:.1e}", kHighRate,
           largest_relative_difference(losses({"dp=4", 4, {"mesh.dp=4"}, 0}, kHighRate), losses({"1", 1, {}, 0}, kHighRate)),
           largest_relative_difference(losses({"tp=2", 2, {"mesh.tp=2"}, 0}, kHighRate), losses({"again", 1, {}, 0}, kHighRate)));

  const Store store = stores.make("sent", {"unlearning.shards=1", "unlearning.budget=1", "mesh.dp=2"});
  const unlearn::ArtifactName second{.shard = 0, .slices = {0, 1}};
  const fs::path records = fs::path(options.scratch) / "records.jsonl";
  const RunStats stats = collect_stats({.recipe = unlearn::recipe_of_stage(store, second, records, 2), .ranks = 2, .steps = 3});
  int64_t trained = 0;
  for (const auto& [name, value] : stats.ranks[0].kept)
    if (name.find(".lora_") != std::string::npos && (name.starts_with("model.layers.5.") || name.starts_with("model.layers.4.")))
      trained += value.numel();
  const double sent = static_cast<double>(stats.ranks[0].sent.at(comm::Purpose::gradient)) / static_cast<double>(4 * trained);
  findings.at_most("7. bytes of gradients that a rank of two sends in a step of stage 2, over those of its own adapters",
                   static_cast<double>(4 * trained), sent, 1.0);
  findings.at_least("7. the same (with less the ranks would not agree)", static_cast<double>(4 * trained), sent, 0.99);

  // A job that was killed between two stages, and goes on.
  const Store straight(fs::path(options.scratch) / "layout-1-0.001");
  const Store resumed = stores.copy(straight, "resumed");
  fs::remove_all(resumed.artifact("s0-0.1"));
  stores.train(resumed);
  findings.at_most("7. killed and resumed: artifacts that differ in a byte", 0,
                   static_cast<double>(differing(straight, resumed, live_names(straight))), 0);
}

}  // namespace cairn::study
