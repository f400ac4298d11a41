#include "unlearn/make_store.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/files/mapped_file.h"
#include "base/log.h"
#include "snapshot/pretrained.h"
#include "unlearn/orders.h"
#include "unlearn/records.h"
#include "unlearn/tombstones.h"

namespace cairn::unlearn {
namespace {

namespace fs = std::filesystem;

// What a store consists of. A folder with these and without store.json was left by an attempt that did not end.
constexpr const char* kParts[] = {"artifacts", "slices", "work", "recipe.toml", "unlearning.toml", "tombstones.log", "tombstones.lock"};

void clear_unfinished(const fs::path& folder) {
  std::error_code none;
  if (!fs::exists(folder, none)) return;
  if (!fs::is_directory(folder, none)) base::fail_input("{}: there is a file of this name. Choose another folder.", folder.string());
  for (const auto& entry : fs::directory_iterator(folder))
    if (std::ranges::find(kParts, entry.path().filename().string()) == std::end(kParts))
      base::fail_input("{}: there is something already ({}). Choose another folder.", folder.string(), entry.path().filename().string());
  for (const char* part : kParts) fs::remove_all(folder / part);
}

StoreSpec spec_of(const UnlearnRecipe& recipe) {
  const UnlearnOptions& o = recipe.options;
  const FrozenModel base = frozen_model(recipe.settings.model.from);
  return {.method = o.method,
          .data = o.data,
          .aggregate = o.aggregate,
          .prefix = o.prefix,
          .shards = o.shards,
          .slices = o.slices,
          .partition_seed = o.partition_seed,
          .seed = recipe.settings.train.seed,
          .orders = orders_of_shards(o),
          .layers = recipe.layers,
          .base = base.path.string(),
          .base_checksum = base.checksum,
          .digest = {}};
}

}  // namespace

FrozenModel frozen_model(const std::string& directory) {
  base::Log quiet = base::Log::quiet();
  const snapshot::Pretrained opened = snapshot::open_pretrained(directory, quiet);
  FrozenModel found{.path = fs::absolute(opened.path).lexically_normal()};
  std::vector<fs::path> files;
  for (const fs::path& folder : {found.path, found.path / "training"})
    if (fs::is_directory(folder))
      for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".safetensors" && (folder == found.path || entry.path().filename() == "adapter.safetensors"))
          files.push_back(entry.path());
  std::ranges::sort(files);
  base::Checksum sum;
  for (const fs::path& file : files) {
    const std::string name = file.lexically_relative(found.path).string();
    sum.add(base::as_bytes(name));
    sum.add(base::MappedFile::open(file.string())->bytes());
  }
  found.checksum = sum.value();
  return found;
}

Store make_store(const UnlearnRecipe& recipe, const fs::path& folder, std::span<const int64_t> without) {
  clear_unfinished(folder);
  StoreSpec spec = spec_of(recipe);
  const Imported found = count_records(recipe.settings.data);
  spec.records = found.records, spec.digest = found.digest;
  if (spec.records < spec.shards * spec.slices)
    base::fail_input("unlearning.shards = {}, slices = {}: the data have {} records, and each of {} slices needs one. Use fewer.",
                     spec.shards, spec.slices, spec.records, spec.shards * spec.slices);
  const std::set<int64_t> deleted(without.begin(), without.end());
  for (const int64_t record : deleted)
    if (record < 0 || record >= spec.records) base::fail_input("--without {}: the data have records 0 to {}.", record, spec.records - 1);
  base::make_folder(folder);
  if (!deleted.empty()) append_tombstones(folder / "tombstones.log", std::vector<int64_t>(deleted.begin(), deleted.end()));
  write_slices(folder, spec, recipe.settings.data, deleted);
  return Store::make(folder, spec, recipe.training_toml, recipe.options_toml);
}

void check_same_recipe(const Store& store, const UnlearnRecipe& recipe) {
  const auto refuse = [&](const std::string& key, const std::string& now, const std::string& then) {
    base::fail_input("{} = {}: {} was made with {}. Leave the key as it was, or make another store.", key, now, store.folder().string(),
                     then);
  };
  const auto compare = [&](base::Recipe before, base::Recipe now, const auto& read) {
    read(before), read(now);
    for (const base::Recipe::Change& change : now.changes_since(before))
      if (!change.key.starts_with("data.path") && !change.key.starts_with("data.sources")) refuse(change.key, change.now, change.before);
  };
  compare(base::Recipe::parse_saved({store.options(), "unlearning.toml"}), base::Recipe::parse_saved({recipe.options_toml, "the recipe"}),
          [](base::Recipe& one) { (void)one.read(unlearning_schema()); });
  compare(base::Recipe::parse_saved({store.recipe(), "recipe.toml"}), base::Recipe::parse_saved({recipe.training_toml, "the recipe"}),
          [](base::Recipe& one) { (void)train::read_settings(one); });
}

}  // namespace cairn::unlearn
