#include "proofs/method_recipes.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/log.h"
#include "proofs/markov_runs.h"
#include "study/claims.h"

namespace cairn::study {

std::vector<MethodRecipe> method_recipes(const ProofOptions& options, base::Log& log) {
  const MarkovRuns runs(options, log, {.layers = 4, .embed = 32, .heads = 4, .mlp = 64, .batch = 24});
  const std::filesystem::path base = runs.base("base", 200, {"optim.learning_rate=0.003"});
  const auto of = [&](const std::string& name, Assignments sets) {
    sets.insert(sets.end(), {"eval.every=0", "optim.learning_rate=0.003"});
    return MethodRecipe{.name = name, .recipe = runs.recipe(base, 12, sets, options.seed)};
  };
  std::vector<MethodRecipe> all;
  all.push_back(of("LoRA", {"model.adapter.kind=lora", "model.adapter.rank=4", "model.adapter.dropout=0.1"}));
  all.push_back(
      of("MoS", {"model.adapter.kind=mos", "model.adapter.rank=5", "model.adapter.equivalent_rank=2", "model.adapter.dropout=0.1"}));
  all.push_back(of("MoSA", {"model.adapter.kind=mosa", "model.adapter.rank=8", "model.adapter.dropout=0.1"}));
  all.push_back(of("SST", {"model.spectral.rank=6", "model.spectral.iteration_steps=3", "model.spectral.round_iterations=2",
                           "model.spectral.warmup_steps=1"}));
  all.push_back(of("DepS", {"supernet.depth=[3, 4]", "supernet.mlp=[16, 32, 64]", "supernet.shrink_at=0.5", "supernet.ramp=0.25"}));
  all.back().moves_whole_model = true;
  return all;
}

}  // namespace cairn::study
