#include "study/prune/prune_inputs.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/json.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/model.h"
#include "snapshot/pretrained.h"
#include "train/settings.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInputsFile = "prune.json";
constexpr int64_t kInputsBytesMax = int64_t{1} << 24;

// Keys, or their beginnings, that may differ. The model and the data are compared by their digests.
const std::vector<std::string> kFreeKeys{"log.",      "eval.",        "snapshot.",         "model.from",
                                         "data.path", "data.sources", "prune.activations", "prune.memory_limit_mb"};

bool is_free(const std::string& key) {
  return std::ranges::any_of(kFreeKeys, [&](const std::string& free) { return key.starts_with(free); });
}

// Whether a job has left something that this one would go on from.
bool has_results(const fs::path& out) {
  for (const char* left : {"pruned", "run", "round-1/pruned", "round-1/model"})
    if (base::path_exists(out / left)) return true;
  return false;
}

[[noreturn]] void fail_other(const std::string& key, const std::string& now, const fs::path& out, const std::string& then) {
  base::fail_input("{} = {}: {} was begun with {}. Set it back, or give another --out.", key, now, out.string(), then);
}

void compare_recipes(base::Recipe before, base::Recipe now, const fs::path& out, void (*read)(base::Recipe&)) {
  read(before), read(now);
  for (const base::Recipe::Change& change : now.changes_since(before))
    if (!is_free(change.key)) fail_other(change.key, change.now, out, change.before);
}

std::string hex(uint64_t digest) { return fmt::format("{:016x}", digest); }

}  // namespace

uint64_t digest_of_model(const snapshot::Pretrained& model) {
  base::Checksum sum;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const at::Tensor whole = tensor.contiguous();
    sum.add(std::as_bytes(std::span(name)));
    sum.add({static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes()});
  };
  const auto decoder = model::make_decoder(model.shape);
  for (const model::Parameter& one : decoder->parameters())
    if (const at::Tensor found = model.view(one.name); found.defined()) add(one.name, found);
  for (const mesh::NamedTensor& one : model.masks) add(one.name, one.tensor);
  return sum.value();
}

void check_same_prune(const PruneRecipe& recipe, const PruneInputs& inputs, const fs::path& out) {
  if (!has_results(out)) return;
  const fs::path file = out / kInputsFile;
  if (!base::path_exists(file))
    base::fail_input("{}: it has a pruned model, and no {} that says from what. Give another --out, or remove it.", out.string(),
                     kInputsFile);
  const base::Json before = base::parse_json(base::read_file(file, kInputsBytesMax));
  for (const char* key : {"prune", "training", "model", "data"})
    if (!before.is_object() || !before.contains(key) || !before[key].is_string())
      base::fail_input("{}: it is damaged. Give another --out, or remove {}.", file.string(), out.string());
  base::Recipe read = recipe.training;
  const train::Settings settings = train::read_settings(read);
  // First: a recipe takes much from the model that it names.
  if (before["model"] != hex(inputs.model)) fail_other("model.from", base::to_toml(settings.model.from), out, "other weights");
  const auto saved = [&](const char* key) { return base::Recipe::parse_saved({before[key].get<std::string>(), file.string()}); };
  compare_recipes(saved("prune"), base::Recipe::parse_saved({recipe.options_toml, "the recipe"}), out, [](base::Recipe& one) {
    (void)one.read(prune_schema());
    (void)one.read(recover_schema());
  });
  compare_recipes(saved("training"), base::Recipe::parse_saved({recipe.training_toml, "the recipe"}), out,
                  [](base::Recipe& one) { (void)train::read_settings(one); });
  if (before["data"] != hex(inputs.data)) fail_other("data.path", base::to_toml(settings.data.path), out, "other data");
}

void write_prune_inputs(const PruneRecipe& recipe, const PruneInputs& inputs, const fs::path& out) {
  const base::OrderedJson json{
      {"prune", recipe.options_toml}, {"training", recipe.training_toml}, {"model", hex(inputs.model)}, {"data", hex(inputs.data)}};
  base::write_atomically(out / kInputsFile, base::pretty(json) + "\n");
}

}  // namespace cairn::study
