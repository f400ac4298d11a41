// `cairn snapshot reshape` and `cairn snapshot diff`: a saved run in another layout, and whether two are the same.
#include "train/reshape.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/launch/resumed_recipe.h"
#include "cli/recipe_overrides.h"
#include "comm/local/local.h"
#include "parallel/options.h"
#include "snapshot/diff.h"
#include "snapshot/folder.h"
#include "snapshot/snapshot.h"

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShown = 20;  // tensors that differ, in a table

// The snapshot folder that a path stands for: of a run, the newest.
std::string snapshot_at(const std::string& path) {
  if (base::path_exists(fs::path(path) / "manifest.json")) return path;
  const std::optional<std::string> newest = snapshot::find_latest(path);
  if (!newest) base::fail_input("{}: it has no snapshots", path);
  return *newest;
}

base::Recipe new_layout(base::Recipe recipe, const SnapshotArguments& a) {
  if (!a.mesh.empty()) {
    for (const char* axis : {"dp", "pp", "cp", "tp", "ep"}) recipe.set(fmt::format("mesh.{}", axis), int64_t{1}, "--mesh");
    recipe.set("mesh.shard", int64_t{0}, "--mesh");
  }
  RecipeOverrides words;
  words.mesh = a.mesh;
  words.sets = a.sets;
  return apply_overrides(std::move(recipe), words);
}

base::OrderedJson json_of(const snapshot::SnapshotDiff& found) {
  base::OrderedJson json = {{"same", found.same()}, {"tensors", found.tensors}, {"elements", found.elements}};
  json["differences"] = base::OrderedJson::array();
  for (const snapshot::TensorDifference& one : found.tensors_differ) {
    base::OrderedJson entry = {{"section", one.section}, {"name", one.name}};
    if (!one.what.empty())
      entry["what"] = one.what;
    else
      entry["elements"] = one.elements;
    if (one.what.empty() && std::isfinite(one.largest)) entry["largest"] = one.largest;
    json["differences"].push_back(std::move(entry));
  }
  json["files"] = found.texts_differ;
  json["layout_files"] = found.layout_files;
  return json;
}

}  // namespace

int reshape_snapshot(const SnapshotArguments& a) {
  const fs::path folder = snapshot_at(a.source);
  const auto named = snapshot::parse_step_folder(folder);
  const fs::path run = folder.parent_path().parent_path();
  if (!named || named->replaced || !base::path_exists(run / "recipe.toml"))
    base::fail_input("{}: not a snapshot of a run directory: give the run, or RUN/snapshots/step-…", folder.string());
  base::Terminal terminal;
  const base::Recipe recipe = new_layout(read_saved_recipe(base::Recipe::File::read((run / "recipe.toml").string()), start_folder(run)), a);
  const int ranks = rank_count(recipe);
  const base::RealClock clock;
  const int64_t bytes = train::copy_run(run, named->step, a.out);
  train::Start start;
  start.out = a.out;
  start.cache = cache_folder() / "data";
  start.day = day_of_run(run, true);
  const auto ended = comm::LocalNetwork(ranks).run([&](comm::World& world) { train::reshape(world, recipe, start); });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
  terminal.line(fmt::format("{}: step {}, {} as {} would save it, {:.1f} s", a.out, named->step, base::human_bytes(bytes),
                            base::plural(ranks, "rank"), base::seconds(clock.now())));
  return 0;
}

int diff_snapshots(const SnapshotArguments& a) {
  const snapshot::OpenSnapshot left = snapshot::open(snapshot_at(a.models.at(0))), right = snapshot::open(snapshot_at(a.models.at(1)));
  const snapshot::SnapshotDiff found = snapshot::diff(left, right);
  base::Terminal terminal;
  if (a.json) {
    terminal.line(base::compact(json_of(found)));
    return found.same() ? 0 : 1;
  }
  for (size_t i = 0; i < std::min(found.tensors_differ.size(), kShown); ++i) {
    const snapshot::TensorDifference& one = found.tensors_differ[i];
    terminal.line(one.what.empty()
                      ? fmt::format("{}: {}: {} elements differ, by at most {:.3g}", one.section, one.name, one.elements, one.largest)
                      : fmt::format("{}: {}: {}", one.section, one.name, one.what));
  }
  if (found.tensors_differ.size() > kShown) terminal.line(fmt::format("and {} more tensors", found.tensors_differ.size() - kShown));
  for (const std::string& file : found.texts_differ) terminal.line(fmt::format("{}: differs", file));
  if (!found.layout_files.empty()) terminal.line(fmt::format("layouts differ: {}", fmt::join(found.layout_files, ", ")));
  terminal.line(fmt::format("{}: {} tensors with {} elements compared", found.same() ? "no difference" : "different", found.tensors,
                            base::human_count(static_cast<double>(found.elements))));
  return found.same() ? 0 : 1;
}

}  // namespace cairn::cli
