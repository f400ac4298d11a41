// `cairn prune`: weights of a trained model are removed, and the quality that this cost is won back by training a sliver of its parameters
// (PERP, arXiv:2312.15230). One round is
//
//   prune      layerwise.h: masks by a criterion; with recover.mode = reconstruct each layer is repaired on the way
//   retrain    train::run on the pruned model, with the masks and the subset of parameters that the recipe names
//   merge      what was trained goes into the weights; pruned weights stay exactly 0
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "study/prune/layerwise.h"
#include "study/prune/prune_options.h"

namespace cairn::comm {
class World;
}

namespace cairn::study {

struct PruneRecipe {
  PruneOptions options;
  base::Recipe training;
  std::string options_toml = {}, training_toml = {};  // with every default
};
PruneRecipe read_prune(const base::Recipe::File& file, const std::vector<std::string>& sets);

struct PruneSetup {
  std::filesystem::path out;         // model/, and what leads to it; a job that is there goes on, with the same recipe
  std::filesystem::path cache = {};  // of tokenized text; empty: none
  int threads = 1;
  std::string device = "cpu";
};

struct PruneRound {
  double sparsity = 0;               // asked for
  LayerwiseResult pruned = {};       // no layers: an earlier call has pruned
  int64_t weights = 0, removed = 0;  // of the masks
  int64_t trained = 0;               // parameters that the recovery trained, of one layer after the other
  double pruned_loss = 0;            // NaN, here and below: not measured
  double recovered_loss = 0;         // before what was trained is merged
  double merged_loss = 0;            // of the model that was written
  double prune_seconds = 0, recover_seconds = 0;
};

struct PruneResult {
  int64_t parameters = 0;  // of the model
  double dense_loss = 0;
  int64_t loss_peak_bytes = 0;  // of tensors on the host while losses were measured, beyond those before; 0: not counted
  std::vector<PruneRound> rounds = {};
  std::filesystem::path model = {};
};

// Collective: all ranks of the world take part, and return the same.
PruneResult run_prune(comm::World& world, const PruneRecipe& recipe, const PruneSetup& setup, const base::Stop& stop);

std::string to_tables(const PruneResult& result);
void write_prune_report(const PruneResult& result, const PruneRecipe& recipe, const std::filesystem::path& out);

}  // namespace cairn::study
