// Options of the command line that set recipe keys.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "mesh/mesh.h"

namespace cairn::base {
class Terminal;
}

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

// Reads the recipe that a command is given by position. Refuses other files and folders with the option that takes them.
base::Recipe::File read_recipe_file(const std::string& path);

// Sets the keys that the options stand for. --set comes last and wins.
base::Recipe apply_overrides(base::Recipe recipe, const RecipeOverrides& words);

// The axes of --mesh ("pp=2,dp=2"). Refuses meshes with parts or rank lists.
std::vector<mesh::Axis> parse_mesh_axes(const std::string& text);

// One line for each retired name that the recipe uses. Leaves out those of the file `quiet`: one that an earlier version wrote.
void print_hints(const base::Recipe& recipe, base::Terminal& terminal, const std::string& quiet = {});

// The number of ranks in the recipe's mesh. The recipe of a resumed run holds the mesh it had.
int rank_count(base::Recipe recipe);

}  // namespace cairn::cli
