// A recipe and what a command line says beside it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "mesh/mesh.h"

namespace cairn::cli {

struct RecipeOverrides {
  std::string data, mesh;  // --data, --mesh
  std::vector<std::string> sets;
  int64_t seed = -1;                   // -1: not given
  int islands = 0;                     // --islands; 0: not given
  std::string sync = {};               // --sync
  int island = -1;                     // --island; -1: not given
  int founders = 0;                    // --founders
  std::string meet = {}, listen = {};  // --meet, --listen
};

// The later the stronger: --set wins.
base::Recipe apply_overrides(base::Recipe recipe, const RecipeOverrides& words);

// What --mesh says.
std::vector<mesh::Axis> parse_mesh_axes(const std::string& text);

// As many ranks as the recipe's mesh has, where it says so: of a resumed run those that it had.
int rank_count(base::Recipe recipe);

}  // namespace cairn::cli
