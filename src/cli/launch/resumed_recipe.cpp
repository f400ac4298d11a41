#include "cli/launch/resumed_recipe.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "cli/launch/run_directory.h"
#include "data/chat/template_date.h"
#include "data/options.h"
#include "model/options.h"
#include "train/build/resume_from.h"
#include "train/report/run_starts.h"
#include "train/settings.h"

namespace cairn::cli {
namespace {

// Whether the shape of the weights depends on a key: on all of [model], but for those whose schema says that they may change.
bool decides_shape(const std::string& key) {
  const auto decides = [&](const base::Section& section) {
    return std::ranges::any_of(section.entries,
                               [&](const base::Entry& entry) { return key == section.name + "." + entry.key && !entry.check.may_change; });
  };
  return decides(model::model_schema().section()) || decides(model::pattern_schema().section());
}

}  // namespace

std::filesystem::path start_folder(const std::filesystem::path& run) {
  const std::vector<train::RunStart> starts = train::read_starts(run / train::kStartsFile);
  if (starts.empty()) return {};
  std::error_code gone;
  const std::filesystem::path folder = starts.back().folder;
  return std::filesystem::is_directory(folder, gone) && folder != std::filesystem::current_path(gone) ? folder : std::filesystem::path();
}

base::Recipe read_saved_recipe(const base::Recipe::File& saved, const std::filesystem::path& folder) {
  base::Recipe recipe = base::Recipe::parse_saved(saved);
  if (folder.empty()) return recipe;
  for (const base::Section& section : train::recipe_sections())
    for (const base::Entry& entry : section.entries)
      recipe.replace_text(section.name + "." + entry.key, [&](const std::string& given) {
        const bool relative = base::is_path(entry.check, given) && !std::filesystem::path(given).is_absolute();
        return relative ? (folder / given).lexically_normal().string() : given;
      });
  return recipe;
}

std::vector<std::string> changed_keys(base::Recipe before, base::Recipe now, const std::filesystem::path& run) {
  train::read_settings(now);
  try {
    train::read_settings(before);
  } catch (const Error&) {
    return {};  // of an earlier version, or with files that are gone: nothing to compare with
  }
  std::vector<std::string> lines;
  for (const base::Recipe::Change& change : now.changes_since(before)) {
    if (decides_shape(change.key))
      base::fail_input(
          "{} = {} ({}): {} was trained with {}, and its weights do not fit another model: leave the key out, or start a new run",
          change.key, change.now, change.origin, run.string(), change.before);
    lines.push_back(
        fmt::format("changed since {} was started: {} {} -> {} ({})", run.string(), change.key, change.before, change.now, change.origin));
  }
  return lines;
}

std::string finished_line(base::Recipe recipe, const RunDirectory& run) {
  const train::TrainOptions options = recipe.read(train::train_schema());
  const int64_t steps = options.steps;
  if (!run.resume || run.step < steps || options.epochs > 0) return {};  // the sampler says how many steps epochs have
  const int64_t islands = train::separate_islands(recipe);
  if (islands > 1 && !std::filesystem::is_directory(run.path / fmt::format("island-{}", islands - 1))) return {};
  train::check_steps_left(steps, run.step, run.path);
  return fmt::format("{} is already at step {}; raise train.steps to train on, as in --set train.steps={}", run.path.string(), run.step,
                     2 * run.step);
}

std::string day_of_run(const std::filesystem::path& run, bool resume) {
  const std::filesystem::path recipe = run / "recipe.toml";
  if (resume && std::filesystem::exists(recipe))
    if (const auto before = base::Recipe::parse_file(recipe).read(data::data_schema()); !before.template_date.empty())
      return before.template_date;
  return data::day_of(base::wall_time());
}

}  // namespace cairn::cli
