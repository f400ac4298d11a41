#include "train/settings.h"

#include "base/check.h"
#include "data/chat/chat_format.h"
#include "snapshot/adapter.h"
#include "snapshot/pretrained.h"
#include "train/steps/dpo.h"
#include "train/steps/one_byte_step.h"

namespace cairn::train {
namespace {

// A key that says otherwise than the directory the model comes from.
void refuse_conflicts(const model::ModelOptions& given, const model::ModelOptions& theirs) {
  const auto schema = model::model_schema();
  const std::vector<base::Setting> ours = schema.values_of(given), expected = schema.values_of(theirs);
  for (size_t i = 0; i < ours.size(); ++i)
    if (ours[i] != expected[i])
      base::fail_input("model.{} = {}: {} says {}, and a model that starts from there has its shape: leave the key out",
                       schema.section().entries[i].key, base::to_toml(ours[i]), given.from, base::to_toml(expected[i]));
}

}  // namespace

Settings read_settings(base::Recipe& recipe) {
  Settings s;
  s.model = recipe.read(model::model_schema());
  data::DataOptions data;
  if (!s.model.from.empty()) {
    const snapshot::ModelOutline outline = snapshot::read_outline(s.model.from);
    const model::ModelOptions theirs = model::options_of(outline.shape, s.model);
    s.model = recipe.read(model::model_schema(), theirs);
    if (s.model.residual != theirs.residual || s.model.ladder_layers != theirs.ladder_layers)
      base::fail_input(
          "model.residual = {}, model.ladder_layers = {}: the wiring differs from that of {} ({}, {}), whose weights would compute "
          "something "
          "else: set model.convert = true to train them further so, or leave the keys out",
          s.model.residual, s.model.ladder_layers, s.model.from, theirs.residual, theirs.ladder_layers);
    refuse_conflicts(s.model, theirs);
    if (!recipe.has("data.tokenizer")) data.tokenizer_file = outline.tokenizer_file;
  }
  s.lora = recipe.read(model::lora_schema());
  if (!s.lora.from.empty()) {
    const snapshot::Adapter adapter = snapshot::read_adapter(s.lora.from);
    if (adapter.dropout > 0)
      base::fail_input("model.lora.from = {}: lora_dropout = {}: Cairn trains adapters without dropout", s.lora.from, adapter.dropout);
    if (adapter.lora.by_root)
      base::fail_input("model.lora.from = {}: use_rslora = true: Cairn trains adapters that count alpha / rank", s.lora.from);
    s.lora = recipe.read(model::lora_schema(), {adapter.lora.rank, adapter.lora.alpha, adapter.lora.targets, s.lora.from});
    if (s.lora.rank != adapter.lora.rank || s.lora.alpha != adapter.lora.alpha || s.lora.targets != adapter.lora.targets)
      base::fail_input("model.lora: rank, alpha and targets come from {}: leave them out", s.lora.from);
  }
  if (s.lora.rank > 0 && s.model.from.empty())
    base::fail_input("model.lora.rank = {}: adapters are added to a model that is there: set model.from", s.lora.rank);
  s.data = recipe.read(data::data_schema(), data);
  data::check_template_word(s.data.chat_template);
  s.train = recipe.read(train_schema());
  s.dpo = recipe.read(dpo_schema());
  s.one_byte = recipe.read(one_byte_schema());
  s.masha = recipe.read(masha_schema());
  s.optim = recipe.read(optim::optim_schema());
  s.layout.mesh = recipe.read(parallel::mesh_schema());
  s.layout.memory = recipe.read(parallel::memory_schema());
  s.layout.context = recipe.read(parallel::context_schema());
  s.layout.tensor = recipe.read(parallel::tensor_schema());
  s.layout.pipeline = recipe.read(parallel::pipeline_schema());
  s.layout.recompute = recipe.read(parallel::recompute_schema());
  s.sync = sync::read_dp_sync(recipe);
  s.island = sync::read_island_sync(recipe);
  s.remote = recipe.read(remote_island_schema());
  s.snapshot = recipe.read(snapshot::snapshot_schema());
  s.eval = recipe.read(eval_schema());
  s.log = recipe.read(log_schema());
  recipe.check_all_used();
  return s;
}

std::vector<base::Section> recipe_sections() {
  std::vector<base::Section> sections{model::model_schema().section(),
                                      model::lora_schema().section(),
                                      data::data_schema().section(),
                                      train_schema().section(),
                                      dpo_schema().section(),
                                      one_byte_schema().section(),
                                      masha_schema().section(),
                                      optim::optim_schema().section(),
                                      parallel::mesh_schema().section(),
                                      parallel::memory_schema().section(),
                                      parallel::tensor_schema().section(),
                                      parallel::context_schema().section(),
                                      parallel::pipeline_schema().section(),
                                      parallel::recompute_schema().section(),
                                      remote_island_schema().section(),
                                      snapshot::snapshot_schema().section(),
                                      eval_schema().section(),
                                      log_schema().section()};
  const std::vector<base::Section> sync = sync::sync_sections();
  sections.insert(sections.end() - 4, sync.begin(), sync.end());
  return sections;
}

}  // namespace cairn::train
