// Models that the proof of PERP prunes, and what it reads out of the results.
#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "model/bit_mask.h"
#include "model/decoder/decoder.h"
#include "model/model.h"
#include "proofs/markov_runs.h"
#include "proofs/perp_parts.h"
#include "proofs/prune_runs.h"
#include "snapshot/pretrained.h"

namespace cairn::study {
namespace {

constexpr int64_t kRetrainSteps = 150;

}  // namespace

PruneTrials::PruneTrials(const ProofOptions& options, base::Log& log) : options_(options), log_(log), scratch_(options.scratch) {
  if (!options.data.empty()) return;
  options_.data = (scratch_ / "markov.txt").string();
  base::make_folder(scratch_);
  base::write_atomically(options_.data, markov_text(2 * options.seed, options.seed, 800'000));
}

base::Recipe PruneTrials::recipe(const Assignments& sets) const {
  return with(small_decoder(options_, {"data.length=24", "train.global_batch=48", "eval.samples=512"}), sets);
}

fs::path PruneTrials::dense() const {
  const fs::path out = scratch_ / "dense";
  train_layout({recipe({"model.kind=gpt2", fmt::format("model.layers={}", kPerpLayers), fmt::format("model.embed={}", kPerpEmbed),
                        "model.heads=4", "model.kv_heads=4", fmt::format("model.mlp={}", kPerpMlp), "model.tied=false", "train.steps=1200",
                        "optim.learning_rate=0.003", "optim.warmup_steps=60", "snapshot.every=1200"}),
                1, out});
  return out;
}

PruneResult PruneTrials::prune(const std::string& name, const fs::path& from, const Assignments& sets, int ranks) const {
  const base::Recipe::File file{.text = R"(
[data]
tokenizer = "bytes"
length = 24
[train]
global_batch = 48
[eval]
samples = 512
every = 0
[snapshot]
every = 0
[log]
tensorboard = false
trace = false
[prune]
calibration = 128
calibration_batch = 16
[prune.recover]
learning_rate = 0.002
)",
                                .name = "perp"};
  Assignments all{"model.from=" + from.string(),
                  "data.path=" + options_.data,
                  fmt::format("train.seed={}", options_.seed),
                  fmt::format("prune.seed={}", options_.seed),
                  fmt::format("prune.recover.rank={}", kPerpRank),
                  fmt::format("prune.recover.alpha={}", 2 * kPerpRank),
                  fmt::format("prune.recover.steps={}", kRetrainSteps)};
  all.insert(all.end(), sets.begin(), sets.end());
  PruneResult result = prune_on_ranks(read_prune(file, all), {.out = scratch_ / name, .cache = scratch_ / "cache"}, ranks);
  const PruneRound& round = result.rounds.back();
  log_.info("{}: dense={:.4f} pruned={:.4f} recovered={:.4f} merged={:.4f} trained={}", name, result.dense_loss, round.pruned_loss,
            round.recovered_loss, round.merged_loss, round.trained);
  return result;
}

OpenedModel open_model(const fs::path& folder) {
  base::Log quiet = base::Log::quiet();
  const snapshot::Pretrained found = snapshot::open_pretrained(folder.string(), quiet);
  const auto decoder = model::make_decoder(found.shape);
  const mesh::NamedTensors views = decoder->layout().views(at::empty({decoder->elements()}));
  found.load_into(views);
  OpenedModel opened{.shape = found.shape, .tensors = {}, .kept = {}};
  for (const mesh::NamedTensor& one : views) opened.tensors[one.name] = one.tensor;
  for (const mesh::NamedTensor& one : found.masks) {
    const std::string weight = one.name.substr(0, one.name.rfind('.'));
    opened.kept[weight] = model::unpack_mask(one.tensor, opened.tensors.at(weight).size(1));
  }
  return opened;
}

int64_t filled(const OpenedModel& model) {
  int64_t count = 0;
  for (const auto& [name, kept] : model.kept) count += model.tensors.at(name).masked_select(kept.logical_not()).ne(0).sum().item<int64_t>();
  return count;
}

int64_t perp_factors() {
  return kPerpLayers * kPerpRank * ((kPerpEmbed + 3 * kPerpEmbed) + 2 * kPerpEmbed + 2 * (kPerpEmbed + kPerpMlp));
}

}  // namespace cairn::study
