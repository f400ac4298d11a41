#include "proofs/island_text.h"

#include <fmt/format.h>

#include "base/metrics.h"
#include "study/claims.h"

namespace cairn::study {

base::Recipe island_decoder(const ProofOptions& options, int64_t steps) {
  Assignments sets{"model.layers=3",
                   "model.embed=40",
                   "model.heads=4",
                   "model.kv_heads=2",
                   "model.mlp=96",
                   "data.length=32",
                   "data.stories_bytes=400000",
                   "train.global_batch=16",
                   fmt::format("train.steps={}", steps),
                   "eval.samples=256",
                   "eval.fraction=0.05",
                   "optim.warmup_steps=30",
                   "optim.learning_rate=0.003",
                   "optim.min_lr_ratio=0.1"};
  if (options.full)
    for (const char* set : {"model.layers=6", "model.embed=192", "model.mlp=512", "data.length=64", "data.stories_bytes=4000000",
                            "optim.learning_rate=0.001"})
      sets.emplace_back(set);
  return small_decoder(options, sets);
}

double held_out_loss(const base::Recipe& recipe, int ranks, const std::filesystem::path& out) {
  train_layout({recipe, ranks, out});
  double loss = 0;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl"))
    if (row.has("eval_loss")) loss = row.number("eval_loss");
  return loss;
}

}  // namespace cairn::study
