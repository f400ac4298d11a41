#include "unlearn/recipe.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>

#include "base/check.h"
#include "data/chat/chat_format.h"
#include "data/selection/pool.h"
#include "model/decoder/decoder.h"
#include "model/families/families.h"
#include "model/model.h"
#include "snapshot/pretrained.h"
#include "study/study_recipe.h"

namespace cairn::unlearn {
namespace {

namespace fs = std::filesystem;

std::string absolute(const std::string& path) { return path.empty() ? path : fs::absolute(path).lexically_normal().string(); }

// An artifact is its slices and nothing else. Each of these would let other records in.
void refuse_other_influence(const train::Settings& s) {
  if (s.model.from.empty())
    base::fail_input("model.from: a store is adapters on a frozen model that has seen none of the records. Name its directory.");
  if (s.adapter.rank == 0) base::fail_input("model.adapter.rank = 0: stages train adapters. Set it, for example to 16.");
  if (!s.adapter.from.empty())
    base::fail_input(
        "model.adapter.from = {}: records that this adapter has seen could never be deleted. Leave it out, or merge it into a "
        "base model (cairn snapshot merge).",
        s.adapter.from);
  if (!s.model.train.empty()) base::fail_input("model.train: each stage trains its own adapters, and the store names them. Leave it out.");
  if (!s.data.needs().is_text()) base::fail_input("data.kind = {}: records of text are deleted so far. Leave data.kind out.", s.data.kind);
  if (s.data.learns_tokenizer())
    base::fail_input(
        "data.tokenizer = bpe: a tokenizer that is learned from the records depends on all of them. Use the base model's "
        "(data.tokenizer_file), or bytes.");
  if (!s.data.subset.empty())
    base::fail_input(
        "data.subset = {}: it was chosen by all records, and depends on each. Write the chosen records to a file "
        "(cairn select --export) if the choice may depend on deleted ones, and name that in data.path.",
        s.data.subset);
  if (!s.data.weights.empty()) base::fail_input("data.weights: a stage reads its slices as they are. Leave the weights out.");
  if (data::needs_template_date(s.data))
    base::fail_input(
        "data.template_date: the chat template writes the date, and stages of different days would differ. Set it to one day.");
  if (s.train.method != train::TrainOptions{}.method)
    base::fail_input("train.method = {}: stages are trained by ordinary steps. Leave it out.", s.train.method);
  if (s.layout.mesh.island > 1)
    base::fail_input("mesh.island = {}: islands average what they have learned, and the jobs of a store share nothing. Use mesh.dp.",
                     s.layout.mesh.island);
  if (s.remote.count > 1)
    base::fail_input("island.count = {}: islands average what they have learned, and the jobs of a store share nothing. Leave it out.",
                     s.remote.count);
  if (s.model.parscale.streams > 1)
    base::fail_input(
        "model.parscale.streams = {}: streams are trained in all layers at once, so no stage could be switched off. Leave it "
        "out.",
        s.model.parscale.streams);
  if (s.model.batch_norm) base::fail_input("model.batch_norm = true: running means depend on every record of a run. Leave it out.");
}

void refuse_adapter(const UnlearnOptions& o, const train::Settings& s) {
  const char* kind = base::enum_name(model::kAdapterKindNames, s.adapter.kind);
  if (s.adapter.kind == model::AdapterKind::lora) return;
  if (o.method == Method::s3t && s.adapter.kind == model::AdapterKind::mos)
    base::fail_input(
        "model.adapter.kind = mos: layers of all stages take pieces of the same pools, so no stage could be switched off by "
        "itself. Use lora with unlearning.method = s3t.");
  base::fail_input("model.adapter.kind = {}: a store serves low-rank adapters of single layers. Use lora.", kind);
}

void refuse_options(const UnlearnOptions& o) {
  if (o.aggregate == Aggregate::vote)
    base::fail_input("unlearning.aggregate = vote: is for classes, and these models predict tokens. Use mean_log_prob or mean_prob.");
  if (o.prefix == Prefix::best && o.validation.empty())
    base::fail_input(
        "unlearning.prefix = best: nothing says which is best. Set unlearning.validation to a file of texts that stay, or use "
        "longest.");
  if (o.method == Method::sisa && o.layers_per_stage > 0)
    base::fail_input("unlearning.layers_per_stage = {}: every stage of sisa has all layers. Leave it out.", o.layers_per_stage);
}

}  // namespace

std::vector<std::vector<int64_t>> layers_of_stages(const UnlearnOptions& o, int64_t layers) {
  std::vector<std::vector<int64_t>> stages(static_cast<size_t>(o.slices));
  if (o.method == Method::sisa) {
    for (std::vector<int64_t>& stage : stages)
      for (int64_t layer = layers - 1; layer >= 0; --layer) stage.push_back(layer);
    return stages;
  }
  if (o.slices > layers)
    base::fail_input("unlearning.slices = {}: {} layers cannot isolate {} slices. Use at most {}.", o.slices, layers, o.slices, layers);
  const int64_t each = o.layers_per_stage > 0 ? o.layers_per_stage : layers / o.slices;
  if (each * o.slices > layers)
    base::fail_input("unlearning.layers_per_stage = {}: {} slices would need {} layers, and the model has {}. Use at most {}.",
                     o.layers_per_stage, o.slices, each * o.slices, layers, layers / o.slices);
  int64_t next = layers - 1;
  for (std::vector<int64_t>& stage : stages)
    for (int64_t i = 0; i < each; ++i) stage.push_back(next--);
  return stages;
}

std::map<int64_t, std::vector<std::string>> adapters_by_layer(const model::DecoderShape& shape, const model::AdapterShape& adapter) {
  const std::string before = model::family(shape.family).names.layers + ".";
  std::map<int64_t, std::vector<std::string>> found;
  const auto decoder = model::make_decoder(shape, adapter);
  for (const model::Parameter& one : decoder->parameters()) {
    if (one.role != model::Parameter::Role::adapter) continue;
    int64_t layer = -1;
    // The whole number of the layer: names with the same beginning (layers.1, layers.10) are of different stages.
    if (one.name.starts_with(before)) std::from_chars(one.name.data() + before.size(), one.name.data() + one.name.size(), layer);
    if (layer < 0)
      base::fail_input(
          "model.adapter.targets: {} lies in no layer, so it would belong to no stage. Name linear layers of the layers alone.",
          one.name.substr(0, one.name.find(".lora_")));
    found[layer].push_back(one.name);
  }
  return found;
}

UnlearnRecipe read_unlearn(const base::Recipe::File& file, const std::vector<std::string>& sets) {
  study::StudyRecipe parts = study::split_recipe(file, sets, "unlearning");
  UnlearnRecipe found;
  found.options = parts.all.read(unlearning_schema());
  parts.all.check_all_used(train::recipe_sections());
  refuse_options(found.options);
  base::Recipe training = parts.training;
  found.settings = train::read_settings(training);
  refuse_adapter(found.options, found.settings);
  refuse_other_influence(found.settings);
  const model::DecoderShape shape = snapshot::read_outline(found.settings.model.from).shape;
  found.layers = layers_of_stages(found.options, shape.layers);
  const auto by_layer = adapters_by_layer(shape, found.settings.adapter.shape());
  for (const std::vector<int64_t>& stage : found.layers)
    if (std::ranges::none_of(stage, [&](int64_t layer) { return by_layer.contains(layer); }))
      base::fail_input("model.adapter.targets: layers {} to {} have none of them, so their stage would train nothing.", stage.back(),
                       stage.front());

  base::Recipe saved = parts.training, options = parts.all;
  saved.set("model.from", absolute(found.settings.model.from), "the store");
  if (!found.settings.data.tokenizer_file.empty())
    saved.set("data.tokenizer_file", absolute(found.settings.data.tokenizer_file), "the store");
  (void)train::read_settings(saved);
  found.training_toml = saved.resolved_toml();
  if (!found.options.validation.empty()) options.set("unlearning.validation", absolute(found.options.validation), "the store");
  found.options = options.read(unlearning_schema());
  base::Recipe own = options;
  found.options_toml = own.resolved_toml();
  return found;
}

}  // namespace cairn::unlearn
