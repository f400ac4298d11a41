// Opening a Hugging Face directory, a snapshot or a run as a model.
#include "snapshot/pretrained.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/text.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/families/config.h"
#include "model/families/expert_names.h"
#include "model/families/families.h"
#include "snapshot/adapter_modules.h"
#include "snapshot/folder.h"
#include "snapshot/manifest.h"
#include "snapshot/snapshot.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kLayersBuilt = 64;  // building so many is cheap
constexpr int64_t kConfigBytesMax = 4 << 20, kCarriedBytesMax = 64 << 20;
constexpr const char* kTexts[] = {"tokenizer.json",
                                  "tokenizer_config.json",
                                  "special_tokens_map.json",
                                  "added_tokens.json",
                                  "vocab.json",
                                  "merges.txt",
                                  "tokenizer.model",
                                  "chat_template.jinja",
                                  "generation_config.json",
                                  "retrieval.json",
                                  "preprocessor_config.json"};

[[noreturn]] void fail_absent(const std::string& folder) {
  base::fail_input("{}: {}; give a Hugging Face directory, a run directory or a snapshot", folder,
                   base::path_exists(folder) ? "no directory" : "no such directory");
}

[[noreturn]] void fail_no_config(const std::string& folder) {
  base::fail_input("{}: no config.json there: neither a Hugging Face directory nor a run or snapshot of Cairn with a language model",
                   folder);
}

// The folder that holds config.json and the tensors. A snapshot's checksums have been checked.
std::string model_folder(const std::string& folder, base::Log& log) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) fail_absent(folder);
  if (base::path_exists(fs::path(folder) / kManifestFile)) return open(folder).path();
  if (base::path_exists(fs::path(folder) / "config.json")) return folder;
  if (!base::path_exists(fs::path(folder) / "recipe.toml")) fail_no_config(folder);
  const std::optional<OpenSnapshot> newest = open_latest(folder, log);
  if (!newest) base::fail_input("{}: this run has no snapshot yet", folder);
  return newest->path();
}

model::DecoderShape shape_in(const std::string& folder) {
  const std::string path = fs::path(folder) / "config.json";
  if (!base::path_exists(path)) fail_no_config(folder);
  return model::parse_config(base::read_file(path, kConfigBytesMax), path);
}

// Names that other writers use for the same tensors, and what they save besides.
Aliases aliases_of(const model::DecoderShape& shape, const mesh::NamedTensors& parameters) {
  const model::FamilyNames& names = model::family(shape.family).names;
  const std::string prefix = names.embedding.substr(0, names.embedding.find('.') + 1);  // absent if saved from the inner model
  Aliases aliases{.others = {}, .ignored_endings = model::family(shape.family).ignored_tensors, .ignored = {}};
  for (const auto& [name, tensor] : parameters)
    if (name.starts_with(prefix)) aliases.others[name].push_back(name.substr(prefix.size()));
  for (model::StackedParameter& one : model::stacked_parameters(shape)) aliases.stacks.emplace(one.name, std::move(one.parts));
  for (auto& [name, theirs] : model::renamed_routers(shape)) aliases.others[name].push_back(theirs);
  const auto is_wanted = [&](const std::string& name) {
    return std::any_of(parameters.begin(), parameters.end(), [&](const mesh::NamedTensor& one) { return one.name == name; });
  };
  for (const char* ending : {".weight", ".bias"})  // an encoder has no head, and a model for other classes one of its own
    if (!is_wanted(names.head + ending)) aliases.ignored.push_back(names.head + ending);
  if (shape.tied) {  // the head is the embedding table; a copy in the file is ignored
    aliases.others[names.embedding + ".weight"].push_back(names.head + ".weight");
    aliases.ignored.push_back(names.head + ".weight");
  }
  return aliases;
}

// A text called *.json must be JSON.
std::string carried_text(const fs::path& path) {
  std::string text = base::read_file(path, kCarriedBytesMax);
  if (path.extension() == ".json")
    if (const std::string trouble = base::json_error(text); !trouble.empty()) base::fail_corrupt(path, trouble);
  return text;
}

}  // namespace

model::AdapterShape Pretrained::unmerged_adapter() const {
  return adapter && adapter->shape.on_branches() ? merge_modules(*adapter).shape : model::AdapterShape{};
}

void Pretrained::load_into(const mesh::NamedTensors& all) const {
  mesh::NamedTensors parameters = all;
  if (unmerged_adapter().rank > 0) load_unmerged(*adapter, parameters);
  const mesh::NamedTensors in_files = spectral ? spectral->merge_into(parameters) : parameters;
  weights.load_into(in_files, aliases_of(shape, in_files));
  const bool adapter_last = sparse && !sparse->options.keep_zeros;
  const bool merges = adapter && !adapter->shape.on_branches();
  if (merges && !adapter_last) merge_adapter(parameters, *adapter, shape);
  if (sparse) merge_sparse(parameters, *sparse, masks, shape);
  if (merges && adapter_last) merge_adapter(parameters, *adapter, shape);
}

at::Tensor Pretrained::view(const std::string& parameter) const {
  const Aliases aliases = aliases_of(shape, {{parameter, at::Tensor()}});
  return weights.find(parameter, aliases);
}

void Pretrained::visit(const std::vector<model::Parameter>& parameters, const std::function<void(size_t, const at::Tensor&)>& take) const {
  mesh::NamedTensors wanted;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(adapter || sparse || spectral ? at::kCPU : at::kMeta);
  for (const model::Parameter& one : parameters) wanted.push_back({one.name, at::empty(one.shape, options)});
  if (!adapter && !sparse && !spectral) return weights.visit(wanted, take, aliases_of(shape, wanted));
  load_into(wanted);
  for (size_t i = 0; i < wanted.size(); ++i) take(i, std::exchange(wanted[i].tensor, {}));
}

void check_tensors(const model::DecoderShape& shape, const WeightFiles& weights, const std::vector<std::string>& elsewhere) {
  const std::string config = fs::path(weights.path()).parent_path() / "config.json";
  if (shape.layers > std::max(kLayersBuilt, weights.size() + std::ssize(elsewhere)))
    base::fail_input("{}: it speaks of {} layers, and {} holds {} tensors: they do not belong together", config, shape.layers,
                     weights.path(), weights.size());
  mesh::NamedTensors parameters;
  const std::unique_ptr<model::Model> decoder = model::make_decoder(shape);
  for (const model::Parameter& one : decoder->parameters())
    if (std::find(elsewhere.begin(), elsewhere.end(), one.name) == elsewhere.end())
      parameters.push_back({one.name, at::empty(one.shape, at::TensorOptions().device(at::kMeta))});
  try {
    weights.check(parameters, aliases_of(shape, parameters));
  } catch (Error& error) {
    throw error.with(fmt::format("the model is that of {}", config));
  }
}

namespace {

void check_memory(const Pretrained& opened, double share) {
  const auto decoder = model::make_decoder(opened.shape);
  const auto bytes = static_cast<int64_t>(share * static_cast<double>(decoder->elements()) * sizeof(float)),
             machine = base::machine_bytes();
  if (machine > 0 && bytes > machine)
    base::fail_input("{}: its {} parameters take {} in fp32, and this machine has {}", opened.path,
                     base::human_count(static_cast<double>(decoder->elements())), base::human_bytes(bytes), base::human_bytes(machine));
}

}  // namespace

Pretrained open_pretrained(const std::string& folder, base::Log& log, double share) {
  Pretrained opened;
  opened.path = model_folder(folder, log);
  opened.shape = shape_in(opened.path);
  opened.weights = WeightFiles::open(opened.path);
  opened.spectral = read_spectral(opened.path);
  check_tensors(opened.shape, opened.weights, opened.spectral ? opened.spectral->names() : std::vector<std::string>{});
  check_memory(opened, share);
  if (const fs::path training = fs::path(opened.path) / "training"; base::path_exists(training / "adapter.safetensors"))
    opened.adapter = read_snapshot_adapter(training);
  opened.masks = read_masks(opened.path, opened.shape);
  opened.sparse = read_sparse(opened.path);
  for (const char* name : kTexts)
    if (const fs::path path = fs::path(opened.path) / name; base::path_exists(path)) opened.texts[name] = carried_text(path);
  return opened;
}

void check_reads_text(const std::string& folder, const model::DecoderShape& shape) {
  if (shape.pictures.channels > 0) base::fail_input("{}: a {} model, which reads pictures. Give a language model.", folder, shape.family);
}

ModelOutline read_outline(const std::string& folder) {
  std::error_code error;
  fs::path place = folder;
  if (!fs::is_directory(place, error)) fail_absent(folder);
  if (!base::path_exists(place / "config.json"))
    for (const StepFolder& step : step_folders(folder))  // all snapshots of a run have the same config
      if (!base::path_exists(place / "config.json")) place = step.path;
  if (!base::path_exists(place / "config.json")) fail_no_config(folder);
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"})
    if (base::path_exists(place / name)) return {shape_in(place), (place / name).string(), masked_weights(place)};
  return {shape_in(place), "", masked_weights(place)};
}

}  // namespace cairn::snapshot
