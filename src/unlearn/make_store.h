// A new store: records are cut into slices before anything is trained, tokenized or packed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>

#include "unlearn/recipe.h"
#include "unlearn/store.h"

namespace cairn::unlearn {

// Makes it in a new or empty folder. `without`: records that count as deleted from the beginning. Nothing of them is ever written.
Store make_store(const UnlearnRecipe& recipe, const std::filesystem::path& folder, std::span<const int64_t> without = {});

// Refuses a recipe that is not the one that the store was made with, naming a key that differs. Data are not compared: the original files
// may have lost records since.
void check_same_recipe(const Store& store, const UnlearnRecipe& recipe);

// The checksum of the tensors of a model's directory, and the directory that it resolves to.
struct FrozenModel {
  std::filesystem::path path;
  uint64_t checksum = 0;
};
FrozenModel frozen_model(const std::string& directory);

}  // namespace cairn::unlearn
