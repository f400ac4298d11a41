#include "cli/recipe_overrides.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "base/terminal.h"
#include "parallel/options.h"
#include "train/settings.h"

namespace cairn::cli {

base::Recipe::File read_recipe_file(const std::string& path) {
  if (path.ends_with(".toml") || !base::path_exists(path)) return base::Recipe::File::read(path);
  try {
    base::Recipe::File file = base::Recipe::File::read(path);
    base::Recipe::parse(file);
    return file;
  } catch (const Error&) {
    base::fail_input("{}: not a recipe (TOML): did you mean --data {}?", path, path);
  }
}

std::vector<mesh::Axis> parse_mesh_axes(const std::string& text) {
  if (text.empty()) return {};
  const mesh::Mesh mesh = mesh::parse_mesh(text);
  if (!mesh.parts.empty() || !mesh.ranks.empty())
    base::fail_input("--mesh {}: every part of a run has the same mesh, in rank order: write it as axis=size,axis=size", text);
  return mesh.axes;
}

int rank_count(base::Recipe recipe) {
  const parallel::MeshOptions mesh = recipe.read(parallel::mesh_schema());
  return static_cast<int>(std::min<int64_t>(mesh.island * std::max<int64_t>(1, mesh.dp) * mesh.pp * mesh.cp * mesh.tp * mesh.ep, 1 << 20));
}

base::Recipe apply_overrides(base::Recipe recipe, const RecipeOverrides& words) {
  if (!words.data.empty()) recipe.set("data.path", words.data, "--data");
  if (words.seed >= 0) recipe.set("train.seed", words.seed, "--seed");
  for (const mesh::Axis& axis : parse_mesh_axes(words.mesh)) recipe.set("mesh." + axis.name, static_cast<int64_t>(axis.size), "--mesh");
  if (words.islands > 0 && words.island < 0) recipe.set("mesh.island", static_cast<int64_t>(words.islands), "--islands");
  if (words.island >= 0) {  // all islands share the recipe, and each has its own mesh
    const int64_t islands = words.islands > 0 ? words.islands : base::Recipe(recipe).read(parallel::mesh_schema()).island;
    recipe.set("island.number", static_cast<int64_t>(words.island), "--island");
    if (islands > 1) {
      recipe.set("island.count", islands, "--islands");
      recipe.set("mesh.island", int64_t{1}, "--island");
    }
  }
  if (words.founders > 0) recipe.set("island.founders", static_cast<int64_t>(words.founders), "--founders");
  if (!words.meet.empty()) recipe.set("island.meet", words.meet, "--meet");
  if (!words.listen.empty()) recipe.set("island.listen", words.listen, "--listen");
  if (!words.sync.empty()) recipe.set("sync.island.kind", words.sync, "--sync");
  for (const std::string& set : words.sets) recipe.set(set);
  return recipe;
}

void print_hints(const base::Recipe& recipe, base::Terminal& terminal, const std::string& quiet) {
  for (const std::string& hint : recipe.hints(train::recipe_sections()))
    if (quiet.empty() || !hint.starts_with(quiet + ":")) terminal.line(hint);
}

}  // namespace cairn::cli
