#pragma once
#include <string>
#include <string_view>

#include "base/recipe.h"

namespace cairn::base {

// Turns TOML text into the flat form that a Recipe keeps; the only part of Cairn that sees toml++.
struct RecipeParser {
  // Adds everything in `text`, with origins like `name:14`. Bad syntax is bad_input naming line and column.
  static void add_text(Recipe& recipe, std::string_view text, const std::string& name);
  // The right side of `key=value`: as TOML if it is TOML, else a string.
  static void add_assignment(Recipe& recipe, const std::string& key, std::string_view value, const std::string& origin);
};

}  // namespace cairn::base
