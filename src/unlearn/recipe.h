// A recipe of a store: [unlearning] beside the sections that train one stage.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "train/settings.h"
#include "unlearn/options.h"

namespace cairn::unlearn {

struct UnlearnRecipe {
  UnlearnOptions options;
  train::Settings settings;                       // of a stage, before the store sets its own keys
  std::string training_toml, options_toml;        // resolved, with absolute paths
  std::vector<std::vector<int64_t>> layers = {};  // of each stage: those with adapters, the last one first
};

// Reads both, and refuses what would let a record reach an artifact that does not say so.
UnlearnRecipe read_unlearn(const base::Recipe::File& file, const std::vector<std::string>& sets);

// The layers of each stage. s3t: counted from the last layer down, the rest stays frozen at the bottom. sisa: all of them in every stage.
std::vector<std::vector<int64_t>> layers_of_stages(const UnlearnOptions& options, int64_t layers);

// The names of the adapters' parameters of a model, by layer. Refuses an adapter outside of the layers.
std::map<int64_t, std::vector<std::string>> adapters_by_layer(const model::DecoderShape& shape, const model::AdapterShape& adapter);

}  // namespace cairn::unlearn
