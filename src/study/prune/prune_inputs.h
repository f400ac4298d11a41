// What a folder of `cairn prune` was begun with: a job that is started again there goes on only with the same.
#pragma once
#include <cstdint>
#include <filesystem>

#include "study/prune/prune.h"

namespace cairn::snapshot {
struct Pretrained;
}

namespace cairn::study {

// Digests of what the recipe names.
struct PruneInputs {
  uint64_t model = 0, data = 0;
};
// Of all tensors that the files of a model have.
uint64_t digest_of_model(const snapshot::Pretrained& model);

// Refuses a folder in which another recipe, model or data has left something. Keys that change no result may differ: those of logs,
// snapshots and evaluation, and where activations wait.
void check_same_prune(const PruneRecipe& recipe, const PruneInputs& inputs, const std::filesystem::path& out);
void write_prune_inputs(const PruneRecipe& recipe, const PruneInputs& inputs, const std::filesystem::path& out);

}  // namespace cairn::study
