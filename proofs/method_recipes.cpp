#include "proofs/method_recipes.h"

#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "base/text.h"
#include "proofs/markov_runs.h"
#include "proofs/prune_runs.h"
#include "proofs/s3t_stores.h"
#include "snapshot/adapter.h"
#include "snapshot/pretrained.h"
#include "study/claims.h"
#include "unlearn/stage.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMethodSteps = 12, kTextLength = 24;

// The base without half of the weights of its blocks, as `cairn prune` writes it.
fs::path half_pruned(const ProofOptions& options, const fs::path& base, const fs::path& text) {
  const base::Recipe::File file{.text = R"(
[data]
tokenizer = "bytes"
length = 24
[eval]
samples = 8
[prune.recover]
mode = "none"
)",
                                .name = "method layouts"};
  return prune_on_ranks(read_prune(file, {"model.from=" + base.string(), "data.path=" + text.string()}),
                        {.out = fs::path(options.scratch) / "half-pruned"})
      .model;
}

// The second stage of an order of S3T: adapters on the lower layers, below those of the first stage, which are frozen.
base::Recipe unlearning_stage(const ProofOptions& options, base::Log& log, const fs::path& from, const fs::path& text) {
  constexpr size_t kLetters = 22, kRecords = 300;
  const std::string letters = base::read_file(text, int64_t{1} << 30);
  S3tWorld world{.base = from, .length = kTextLength, .judged = kTextLength};
  for (size_t at = 0; at + kLetters <= letters.size() && world.records.size() < kRecords; at += kLetters)
    world.records.push_back(base::valid_utf8(letters.substr(at, kLetters)));
  world.held_out = {world.records.front()};
  const S3tStores stores(options, log, world);
  const unlearn::Store store = stores.make("stages", {"unlearning.shards=1", "unlearning.slices=2", "unlearning.budget=1",
                                                      "unlearning.cache_bytes=0", "model.adapter.rank=4", "train.global_batch=24"});
  const unlearn::ArtifactName second{.shard = 0, .slices = {0, 1}};
  return with(unlearn::recipe_of_stage(store, second, fs::path(options.scratch) / "records.jsonl", 1),
              {"train.epochs=0", "log.tensorboard=false", "log.trace=false", "optim.learning_rate=0.003"});
}

// Bottleneck adapters are no part of any weight: a further run has the same base, and continues from the merged adapter.
base::Recipe from_merged_adapter(const MarkovRuns& runs, const ProofOptions& options, const fs::path& base, const fs::path& run) {
  base::Log quiet = base::Log::quiet();
  const snapshot::Pretrained trained = snapshot::open_pretrained(run.string(), quiet);
  const fs::path folder = run.string() + "-adapter";
  snapshot::write_adapter(folder.string(), trained.adapter.value(), trained.shape, base.string(), base::real_disk());
  return runs.recipe(base, kMethodSteps, {"model.adapter.from=" + folder.string(), "eval.every=0", "optim.learning_rate=0.003"},
                     options.seed);
}

}  // namespace

std::vector<MethodRecipe> method_recipes(const ProofOptions& options, base::Log& log) {
  const MarkovRuns runs(options, log, {.layers = 4, .embed = 32, .heads = 4, .mlp = 64, .length = kTextLength, .batch = 24});
  const fs::path base = runs.base("base", 200, {"optim.learning_rate=0.003"});
  const fs::path text = options.data.empty() ? fs::path(options.scratch) / "second.txt" : fs::path(options.data);
  const auto of = [&](const std::string& name, const fs::path& from, Assignments sets) {
    sets.insert(sets.end(), {"eval.every=0", "optim.learning_rate=0.003"});
    return MethodRecipe{.name = name, .recipe = runs.recipe(from, kMethodSteps, sets, options.seed)};
  };
  std::vector<MethodRecipe> all;
  all.push_back(of("LoRA", base, {"model.adapter.kind=lora", "model.adapter.rank=4", "model.adapter.dropout=0.1"}));
  all.push_back(
      of("MoS", base, {"model.adapter.kind=mos", "model.adapter.rank=5", "model.adapter.equivalent_rank=2", "model.adapter.dropout=0.1"}));
  all.push_back(of("MoSA", base, {"model.adapter.kind=mosa", "model.adapter.rank=8", "model.adapter.dropout=0.1"}));
  all.back().further = [runs, options, base](const fs::path& run) { return from_merged_adapter(runs, options, base, run); };
  all.push_back(of("SST", base, {"model.spectral.rank=6", "model.spectral.iteration_steps=3", "model.spectral.round_iterations=2",
                                 "model.spectral.warmup_steps=1"}));
  all.push_back(of("DepS", base, {"supernet.depth=[3, 4]", "supernet.mlp=[16, 32, 64]", "supernet.shrink_at=0.5", "supernet.ramp=0.25"}));
  all.back().trains_all = true;
  const fs::path pruned = half_pruned(options, base, text);
  all.push_back(of("PERP", pruned, {"model.sparse.form=masked"}));
  all.back().trains_all = true;
  all.push_back(of("PERP with MaskLoRA and norms", pruned,
                   {"model.sparse.form=mask_lora", "model.sparse.rank=4", R"(model.train=["role:adapter","role:norm"])"}));
  all.push_back({.name = "S3T", .recipe = unlearning_stage(options, log, base, text)});
  return all;
}

}  // namespace cairn::study
