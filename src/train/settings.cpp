#include "train/settings.h"

#include <algorithm>

#include "base/check.h"
#include "data/chat/chat_format.h"
#include "data/retrieval/dataset.h"
#include "data/sampler.h"
#include "optim/needs.h"
#include "snapshot/adapter.h"
#include "snapshot/pretrained.h"
#include "train/step_methods.h"

namespace cairn::train {
namespace {

// Refuses a key that contradicts the shape of the pretrained model.
template <class Options>
void refuse_conflicts(const base::Schema<Options>& schema, const Options& given, const Options& theirs, const std::string& from) {
  const std::vector<base::Setting> ours = schema.values_of(given), expected = schema.values_of(theirs);
  for (size_t i = 0; i < ours.size(); ++i)
    if (ours[i] != expected[i])
      base::fail_input("{}.{} = {}: the model in {} has {}: leave the key out", schema.section().name, schema.section().entries[i].key,
                       base::to_toml(ours[i]), from, base::to_toml(expected[i]));
}

// Which parameters model.parscale.train names, in place of model.train; and what is refused before anything is built.
void train_streams(Settings& s) {
  const model::StreamOptions& o = s.model.parscale;
  if (o.streams == 1) return;
  if (o.train == "adapter" && s.model.from.empty())
    base::fail_input("model.parscale.train = \"adapter\": a new model has nothing to freeze. Set model.from, or use train = \"all\".");
  if (!o.from.empty() && s.model.from.empty())
    base::fail_input("model.parscale.from = {}: prefixes belong to a model. Set model.from.", o.from);
  if (o.train == "all" && s.adapter.rank == 0 && s.model.train.empty()) s.model.train = {"*"};
}

// Every key that a recipe gives must be what the adapter of `from` has.
void refuse_conflicts(const base::Schema<model::AdapterOptions>& schema, const model::AdapterOptions& given,
                      const model::AdapterOptions& theirs) {
  const std::vector<base::Setting> ours = schema.values_of(given), expected = schema.values_of(theirs);
  for (size_t i = 0; i < ours.size(); ++i)
    if (ours[i] != expected[i])
      base::fail_input("{}.{} = {}: the adapter in {} has {}: leave the key out", schema.section().name, schema.section().entries[i].key,
                       base::to_toml(ours[i]), given.from, base::to_toml(expected[i]));
}

// model.adapter.*, or model.lora.* in its place; with `from` what the adapter there has.
model::AdapterOptions read_adapter_options(base::Recipe& recipe) {
  const model::AdapterOptions brief = recipe.read(model::lora_schema()), full = recipe.read(model::adapter_schema());
  const bool is_brief = brief != model::AdapterOptions{};
  if (is_brief && full != model::AdapterOptions{}) base::fail_input("model.lora is the short form of model.adapter: give one of the two");
  const model::AdapterOptions& given = is_brief ? brief : full;
  if (given.from.empty()) return given;
  const snapshot::Adapter adapter = snapshot::read_adapter(given.from);
  const base::Schema<model::AdapterOptions> schema = is_brief ? model::lora_schema() : model::adapter_schema();
  const model::AdapterOptions theirs = model::options_of(adapter.shape, given.from);
  if (is_brief && theirs.kind != model::AdapterKind::lora)
    base::fail_input("model.lora.from = {}: it holds pools of model.adapter.kind = \"{}\": set model.adapter.from instead", given.from,
                     base::enum_name(model::kAdapterKindNames, theirs.kind));
  const model::AdapterOptions read = recipe.read(schema, theirs);
  refuse_conflicts(schema, read, theirs);
  return read;
}

// The options of all step methods; methods that share a section have it once.
std::vector<StepOptions> step_options() {
  std::vector<StepOptions> all;
  std::vector<std::string> names;
  for (const StepMethod& method : step_methods()) {
    if (!method.options.section) continue;
    const std::string name = method.options.section().name;
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    names.push_back(name);
    all.push_back(method.options);
  }
  return all;
}

}  // namespace

namespace {

// A rate that is proportional to the batch is for rules whose steps are proportional to the gradient. Whoever writes the key means it.
void check_rate_of_shapes(const Settings& s, const base::Recipe& recipe) {
  const data::SamplerOptions& o = s.data.order;
  if (!data::sampler_needs(s.data.sampler).clips || !o.long_cycle || !o.scale_lr || recipe.has("sampler.scale_lr")) return;
  if (optim::optimizer_needs(s.optim.kind).adaptive)
    base::fail_input(
        "optim.kind = {}: data.sampler = {} multiplies the learning rate by the size of the batch, which is for optim.kind = sgd. Set "
        "sampler.scale_lr = false, or true to have it anyway.",
        s.optim.kind, s.data.sampler);
}

// Streams, pattern and wiring are those of the model that is opened, unless the recipe says that it is to be converted.
void read_structure(base::Recipe& recipe, model::ModelOptions& model, const model::ModelOptions& theirs,
                    const snapshot::ModelOutline& outline) {
  if (outline.shape.streams.count > 1) {
    model.parscale = recipe.read(model::stream_schema(), theirs.parscale);
    if (model.parscale.streams != theirs.parscale.streams || model.parscale.prefix_tokens != theirs.parscale.prefix_tokens)
      base::fail_input(
          "model.parscale.streams = {}, prefix_tokens = {}: the model in {} has {} streams with {} tokens each. Leave the keys out, or "
          "start from a model without streams.",
          model.parscale.streams, model.parscale.prefix_tokens, model.from, theirs.parscale.streams, theirs.parscale.prefix_tokens);
  }
  if (outline.shape.experts.count > 0) {
    model.moe = recipe.read(model::expert_schema(), theirs.moe);
    refuse_conflicts(model::expert_schema(), model.moe, theirs.moe, model.from);
  }
  model::PatternOptions pattern = theirs.attention;
  model.attention = recipe.read(model::pattern_schema(), recipe.has("model.attention.type") ? model::PatternOptions{} : pattern);
  pattern.allow_partial_cover = model.attention.allow_partial_cover;  // a permission, not a part of the pattern
  if (model.attention != pattern && !model.convert)
    base::fail_input(
        "model.attention: the pattern differs from that of {}, whose weights would compute another function. Set model.convert = true to "
        "continue training with this pattern, or leave the keys out.",
        model.from);
  if (model.residual != theirs.residual || model.ladder_layers != theirs.ladder_layers)
    base::fail_input(
        "model.residual = {}, model.ladder_layers = {}: the wiring differs from that of {} ({}, {}), whose weights would compute "
        "another function: set model.convert = true to continue training with this wiring, or leave the keys out",
        model.residual, model.ladder_layers, model.from, theirs.residual, theirs.ladder_layers);
}

}  // namespace

Settings read_settings(base::Recipe& recipe) {
  Settings s;
  s.model = recipe.read(model::model_schema());
  s.model.attention = recipe.read(model::pattern_schema());
  s.model.parscale = recipe.read(model::stream_schema());
  s.model.moe = recipe.read(model::expert_schema());
  s.model.cnn = recipe.read(model::conv_schema());
  s.model.supernet = recipe.read(model::supernet_schema());
  s.model.sparse = recipe.read(model::sparse_schema());
  s.model.spectral = recipe.read(model::spectral_schema());
  s.model.hyperbolic = recipe.read(model::hyperbolic_schema());
  data::DataOptions data;
  if (!s.model.from.empty()) {
    const snapshot::ModelOutline outline = snapshot::read_outline(s.model.from);
    const model::ModelOptions theirs = model::options_of(outline.shape, s.model);
    s.model = recipe.read(model::model_schema(), theirs);
    read_structure(recipe, s.model, theirs, outline);
    refuse_conflicts(model::model_schema(), s.model, theirs, s.model.from);
    s.model.sparse.weights = outline.masked_weights;
    if (!recipe.has("data.tokenizer")) data.tokenizer_file = outline.tokenizer_file;
    if (const model::PatchInput& pictures = outline.shape.pictures; pictures.channels > 0)
      data.images.size = pictures.size, data.images.channels = pictures.channels;
  }
  if (s.model.sparse != model::SparseOptions{} && s.model.sparse.weights.empty())
    base::fail_input("model.sparse.form = {}: {}. Prune it first (cairn prune), or leave model.sparse out.",
                     base::enum_name(model::kSparseFormNames, s.model.sparse.form),
                     s.model.from.empty() ? "a new model has no masks" : s.model.from + " has no masks");
  s.adapter = read_adapter_options(recipe);
  if (s.adapter.rank > 0 && s.model.from.empty())
    base::fail_input("model.adapter.rank = {}: adapters need a pretrained model: set model.from", s.adapter.rank);
  if (s.adapter.kind == model::AdapterKind::bottleneck && s.adapter.style == model::AdapterStyle::lora)
    base::fail_input("model.adapter.style = lora: has no bottleneck of its own. Use model.adapter.kind = lora, or another style.");
  if (s.adapter.dropout > 0 && s.model.parscale.streams > 1)
    base::fail_input("model.adapter.dropout = {}: not with model.parscale.streams = {}. Leave one of the two out.", s.adapter.dropout,
                     s.model.parscale.streams);
  train_streams(s);
  s.data = recipe.read(data::data_schema(), data);
  s.data.order = recipe.read(data::sampler_schema());
  s.data.retrieval = recipe.read(data::retrieval_schema());
  if (s.data.needs().retrieval) s.data.length = data::longest_sample(s.data.retrieval);
  s.data.clips = recipe.read(data::clip_schema());
  s.data.images = recipe.read(data::image_schema(), data.images);
  data::check_template_keys(s.data);
  s.train = recipe.read(train_schema());
  for (const StepOptions& options : step_options()) s.steps.push_back(options.read(recipe));
  s.optim = recipe.read(optim::optim_schema(),
                        {.warmup_steps = optim::default_warmup_steps(s.train.epochs > 0 ? TrainOptions{}.steps : s.train.steps)});
  s.layout.mesh = recipe.read(parallel::mesh_schema());
  s.layout.memory = recipe.read(parallel::memory_schema());
  s.layout.context = recipe.read(parallel::context_schema());
  s.layout.tensor = recipe.read(parallel::tensor_schema());
  s.layout.pipeline = recipe.read(parallel::pipeline_schema());
  s.layout.recompute = recipe.read(parallel::recompute_schema());
  s.layout.expert = recipe.read(parallel::expert_layout_schema());
  s.layout.place = recipe.read_patterns(parallel::kPlaceTable);
  s.sync = sync::read_dp_sync(recipe);
  s.island = sync::read_island_sync(recipe);
  s.remote = recipe.read(remote_island_schema());
  s.snapshot = recipe.read(snapshot::snapshot_schema());
  s.diagnosis = recipe.read(elastic::diagnosis_schema());
  s.memory_snapshot = recipe.read(memory_snapshot_schema());
  s.eval = recipe.read(eval_schema());
  s.log = recipe.read(log_schema());
  check_rate_of_shapes(s, recipe);
  recipe.check_all_used();
  return s;
}

void set_template_date(Settings& settings, base::Recipe& recipe, const std::string& day) {
  if (day.empty() || !data::needs_template_date(settings.data)) return;
  settings.data.template_date = day;
  settings.data = recipe.read(data::data_schema(), settings.data);
}

std::vector<base::Section> recipe_sections() {
  std::vector<base::Section> sections{model::model_schema().section(),
                                      model::pattern_schema().section(),
                                      model::stream_schema().section(),
                                      model::expert_schema().section(),
                                      model::conv_schema().section(),
                                      model::supernet_schema().section(),
                                      model::sparse_schema().section(),
                                      model::spectral_schema().section(),
                                      model::hyperbolic_schema().section(),
                                      model::adapter_schema().section(),
                                      model::lora_schema().section(),
                                      data::data_schema().section(),
                                      data::sampler_schema().section(),
                                      data::retrieval_schema().section(),
                                      data::clip_schema().section(),
                                      data::image_schema().section(),
                                      train_schema().section(),
                                      optim::optim_schema().section(),
                                      parallel::mesh_schema().section(),
                                      parallel::memory_schema().section(),
                                      parallel::tensor_schema().section(),
                                      parallel::context_schema().section(),
                                      parallel::expert_layout_schema().section(),
                                      parallel::pipeline_schema().section(),
                                      parallel::recompute_schema().section(),
                                      parallel::place_section(),
                                      remote_island_schema().section(),
                                      snapshot::snapshot_schema().section(),
                                      elastic::diagnosis_schema().section(),
                                      memory_snapshot_schema().section(),
                                      eval_schema().section(),
                                      log_schema().section()};
  const auto train = std::ranges::find(sections, train_schema().section().name, &base::Section::name);
  std::vector<base::Section> steps;
  for (const StepOptions& options : step_options()) steps.push_back(options.section());
  sections.insert(train + 1, steps.begin(), steps.end());
  const std::vector<base::Section> sync = sync::sync_sections();
  sections.insert(sections.end() - 5, sync.begin(), sync.end());
  return sections;
}

}  // namespace cairn::train
