// Opening a Hugging Face directory, a snapshot or a run as a model.
#include "snapshot/pretrained.h"

#include <filesystem>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "model/config.h"
#include "model/decoder.h"
#include "model/families.h"
#include "snapshot/folder.h"
#include "snapshot/manifest.h"
#include "snapshot/snapshot.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kConfigBytesMax = 10'000'000, kCarriedBytesMax = 200'000'000;
constexpr const char* kTexts[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",     "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "generation_config.json"};

[[noreturn]] void fail_absent(const std::string& folder) {
  base::fail_input("{}: no such directory; give a Hugging Face directory, a run directory or a snapshot", folder);
}

[[noreturn]] void fail_no_config(const std::string& folder) {
  base::fail_input("{}: no config.json there: neither a Hugging Face directory nor a run or snapshot of Cairn with a language model",
                   folder);
}

// The folder that holds config.json and the tensors. A snapshot's checksums have been checked.
std::string model_folder(const std::string& folder, base::Log& log) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) fail_absent(folder);
  if (fs::exists(fs::path(folder) / kManifestFile, error)) return open(folder).path();
  if (fs::exists(fs::path(folder) / "config.json", error)) return folder;
  if (!fs::exists(fs::path(folder) / "recipe.toml", error)) fail_no_config(folder);
  const std::optional<Opened> newest = open_latest(folder, log);
  if (!newest) base::fail_input("{}: this run has no snapshot yet", folder);
  return newest->path();
}

model::DecoderShape shape_in(const std::string& folder) {
  const std::string path = fs::path(folder) / "config.json";
  std::error_code error;
  if (!fs::exists(path, error)) fail_no_config(folder);
  return model::parse_config(base::read_file(path, kConfigBytesMax), path);
}

// Names that other writers use for the same tensors, and what they save besides.
Aliases aliases_of(const model::DecoderShape& shape, const mesh::NamedTensors& parameters) {
  const model::FamilyNames& names = model::family(shape.family).names;
  const std::string prefix = names.embedding.substr(0, names.embedding.find('.') + 1);  // saved from the inner model, it is not there
  Aliases aliases{.others = {}, .ignored_endings = {".rotary_emb.inv_freq"}, .ignored = {}};
  if (shape.family == "gpt2") aliases.ignored_endings = {".attn.bias", ".attn.masked_bias"};  // causal masks, not biases
  for (const auto& [name, tensor] : parameters)
    if (name.starts_with(prefix)) aliases.others[name].push_back(name.substr(prefix.size()));
  if (shape.tied) {  // the head is the table, whatever a file says of it
    aliases.others[names.embedding + ".weight"].push_back(names.head + ".weight");
    aliases.ignored.push_back(names.head + ".weight");
  }
  return aliases;
}

}  // namespace

void Pretrained::load_into(const mesh::NamedTensors& parameters) const {
  weights.load_into(parameters, aliases_of(shape, parameters));
  if (adapter) merge_adapter(parameters, *adapter, shape);
}

void check_tensors(const model::DecoderShape& shape, const WeightFiles& weights) {
  mesh::NamedTensors parameters;
  const std::unique_ptr<model::Model> decoder = model::make_decoder(shape);
  for (const model::Parameter& one : decoder->parameters())
    parameters.push_back({one.name, at::empty(one.shape, at::TensorOptions().device(at::kMeta))});
  weights.check(parameters, aliases_of(shape, parameters));
}

Pretrained open_pretrained(const std::string& folder, base::Log& log) {
  Pretrained opened;
  opened.path = model_folder(folder, log);
  opened.shape = shape_in(opened.path);
  opened.weights = WeightFiles::open(opened.path);
  std::error_code error;
  if (const fs::path training = fs::path(opened.path) / "training"; fs::exists(training / "adapter.safetensors", error))
    opened.adapter = read_snapshot_adapter(training);
  for (const char* name : kTexts)
    if (const fs::path path = fs::path(opened.path) / name; fs::exists(path, error))
      opened.texts[name] = base::read_file(path, kCarriedBytesMax);
  return opened;
}

Outline read_outline(const std::string& folder) {
  std::error_code error;
  fs::path place = folder;
  if (!fs::is_directory(place, error)) fail_absent(folder);
  if (!fs::exists(place / "config.json", error))
    for (const StepFolder& step : step_folders(folder))  // those of one run are alike
      if (!fs::exists(place / "config.json", error)) place = step.path;
  if (!fs::exists(place / "config.json", error)) fail_no_config(folder);
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"})
    if (fs::exists(place / name, error)) return {shape_in(place), (place / name).string()};
  return {shape_in(place), ""};
}

}  // namespace cairn::snapshot
