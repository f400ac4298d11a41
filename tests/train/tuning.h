// Short runs of fine-tuning on a tiny model of bytes, and what they leave.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/stop.h"
#include "comm/world.h"
#include "data/subset.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "snapshot/folder.h"
#include "snapshot/pretrained.h"
#include "snapshot/snapshot.h"
#include "train/train.h"

namespace cairn::train {

using Rows = std::vector<base::MetricsRow>;
using Sets = std::vector<std::string>;

inline Sets operator+(Sets sets, const Sets& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

// Plain gradient descent, so that a step shows the gradient.
inline base::Recipe tuning_recipe(const Sets& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    data = {length = 40, template = "plain"}
    train = {steps = 1}
    optim = {kind = "sgd", learning_rate = 1.0, momentum = 0.0, weight_decay = 0.0, max_grad_norm = 0.0, warmup_steps = 0, schedule = "constant"}
    log = {tensorboard = false, trace = false, samples = 0}
    eval = {every = 0, fraction = 0.0}
  )",
                                            "tuning.toml");
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

struct TuneOptions {
  int ranks = 1;
  bool resume = false;
  bool expect_errors = false;
};

inline harness::Run tune(const std::filesystem::path& out, const Sets& sets, TuneOptions options = {}) {
  const base::Stop never;
  return harness::on_ranks(options.ranks, {.expect_errors = options.expect_errors}, [&](comm::World& world) {
    Start start;
    start.out = out;
    start.resume = options.resume;
    run(world, tuning_recipe(sets), start, {}, never);
  });
}

inline std::vector<double> numbers_of(const std::filesystem::path& run, const std::string& name) {
  std::vector<double> numbers;
  for (const base::MetricsRow& row : base::read_metrics(run / "metrics.jsonl"))
    if (row.has(name)) numbers.push_back(row.number(name));
  return numbers;
}

// A model to start from.
inline std::string make_base_model(const std::filesystem::path& out) {
  tune(out, {"model.layers=2", "model.embed=16", "model.heads=2", "model.kv_heads=1", "model.mlp=24", "data.tokenizer=bytes",
             "data.stories_bytes=4000", "train.global_batch=4"});
  return snapshot::step_folder(out, 1);
}

// A decoder with the values that a snapshot holds: its own and those of its adapters, not merged.
struct SavedModel {
  std::unique_ptr<model::Model> model;
  at::Tensor flat;
};

inline SavedModel saved_model(const std::filesystem::path& run, int64_t step, const model::AdapterShape& lora = {}) {
  const snapshot::OpenSnapshot opened = snapshot::open(snapshot::step_folder(run, step));
  SavedModel saved;
  saved.model = model::make_decoder(snapshot::read_outline(opened.path()).shape, lora);
  saved.flat = at::empty({saved.model->elements()});
  mesh::NamedTensors own, adapters;
  for (const mesh::NamedTensor& one : saved.model->layout().views(saved.flat))
    (one.name.find(".lora_") == std::string::npos ? own : adapters).push_back(one);
  opened.load_into("model", own);
  if (!adapters.empty()) opened.load_into("adapter", adapters);
  return saved;
}

}  // namespace cairn::train
