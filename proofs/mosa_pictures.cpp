// MoSA in a vision transformer: reported beside its controls.
#include <map>

#include "proofs/mosa_parts.h"
#include "proofs/sampler_runs.h"
#include "proofs/study_tables.h"
#include "study/claims.h"
#include "train/evaluate.h"
#include "train/job.h"

namespace cairn::study {
namespace {

// A small vision transformer of textures, adapted to other classes with few pictures of each.
class TextureTasks {
 public:
  TextureTasks(const ProofOptions& options, base::Log& log) : options_(options), log_(log), base_(fs::path(options.scratch) / "vit") {
    train_with(recipe({"images.classes=20", "model.kind=vit", "model.layers=6", "model.embed=96", "model.heads=4", "model.mlp=192",
                       "model.patch=4", fmt::format("train.steps={}", options.full ? 1500 : 300), "train.global_batch=32",
                       "images.count=8000", "images.held_out=200", "optim.learning_rate=0.001", "snapshot.last=true"},
                      options.seed),
               base_, {});
  }

  double accuracy(int64_t task, const Assignments& adapter, uint64_t seed) const {
    Assignments keys{"model.from=" + base_.string(), "model.adapter.dropout=0.1", "train.global_batch=32",
                     "images.held_out=300",          "optim.learning_rate=0.005", fmt::format("train.steps={}", options_.full ? 200 : 60),
                     "optim.weight_decay=0.01",      "model.adapter.rank=16",     "model.adapter.style=adaptformer"};
    keys.insert(keys.end(), adapter.begin(), adapter.end());
    const int64_t classes = 6 + 2 * task, per_class = task % 2 == 0 ? 8 : 20;
    if (pictures())
      keys.push_back("data.path=" + options_.data);
    else
      keys.insert(keys.end(), {fmt::format("images.classes={}", classes), fmt::format("images.count={}", classes * per_class)});
    double found = 0;
    train_with(recipe(keys, seed), {}, {.at_end = [&](train::Job& job) { found = train::evaluate_held_out(job).measures.at(0); }},
               pictures() ? data::Subset(0, 200) : data::Subset());
    return found;
  }

  bool pictures() const { return fs::is_directory(options_.data); }

 private:
  base::Recipe recipe(const Assignments& sets, uint64_t seed) const {
    base::Recipe recipe = base::Recipe::parse(R"(
      [data]
      kind = "images"
      [images]
      size = 16
      [optim]
      warmup_steps = 10
      [eval]
      every = 0
      samples = 300
      [snapshot]
      every = 0
      [log]
      tensorboard = false
      trace = false
      samples = 0
    )",
                                              "proof");
    recipe.set("train.seed", static_cast<int64_t>(seed), "--seed");
    return with(std::move(recipe), sets);
  }

  const ProofOptions& options_;
  base::Log& log_;
  fs::path base_;
};

}  // namespace

void mosa_of_pictures(const ProofOptions& options, base::Log& log) {
  const TextureTasks tasks(options, log);
  const int64_t count = tasks.pictures() ? 1 : options.full ? 5 : 2, seeds = options.full ? 5 : 1;
  const std::vector<std::pair<std::string, Assignments>> ways{{"adapter", {"model.adapter.kind=bottleneck"}},
                                                              {"adapter + KL", {"model.adapter.kind=mosa", "model.adapter.modules=1"}},
                                                              {"MoSA", {"model.adapter.kind=mosa", "model.adapter.modules=4"}}};
  std::map<std::string, std::vector<double>> accuracies;
  for (const auto& [name, keys] : ways) accuracies[name].resize(static_cast<size_t>(count * seeds));
  in_parallel(std::ssize(ways) * count * seeds, [&](int64_t job) {
    const auto& [name, keys] = ways[static_cast<size_t>(job) % ways.size()];
    const int64_t pair = job / std::ssize(ways);
    accuracies.at(name)[static_cast<size_t>(pair)] = tasks.accuracy(pair / seeds, keys, options.seed + static_cast<uint64_t>(pair % seeds));
  });
  int64_t above = 0, pairs = std::ssize(accuracies.at("MoSA"));
  for (size_t i = 0; i < accuracies.at("MoSA").size(); ++i) above += accuracies.at("MoSA")[i] > accuracies.at("adapter + KL")[i];
  for (const auto& [name, found] : accuracies)
    log.info("reported, not asserted: {}: accuracy {:.3f}, mean of {} task and seed pairs on pictures", name, mean_of(found), pairs);
  log.info("reported, not asserted: MoSA is above the adapter + KL control in {} of {} pairs", above, pairs);
}

}  // namespace cairn::study
