// Lifelong training with a bounded pool (Adapt-infinity). After each arrival of a dataset:
//
//   vectors      projected gradients of every sample of the pool under the current model
//   clusters     k-means on them
//   scores       of each cluster, the one that spreads its samples most; samples are chosen across its range, clusters share the budget
//   training     on the chosen samples, from the weights of the step before
//   pruning      to the cap: in each cluster, samples that resemble an earlier one go, for good
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "study/lifelong_options.h"
#include "study/value.h"

namespace cairn::comm {
class World;
}

namespace cairn::study {

struct LifelongRecipe {
  LifelongOptions study;
  VectorOptions vectors;
  std::vector<int64_t> image;  // columns that score ig leaves out
  base::Recipe training;       // with the datasets as data.sources
};
// Refuses unknown keys, a budget above the cap, ig for texts, and values that contradict each other.
LifelongRecipe read_lifelong(const base::Recipe::File& file, const std::vector<std::string>& sets);

struct ClusterChoice {
  int64_t size = 0, budget = 0;
  std::string score;            // that samples were ranked by
  std::vector<double> entropy;  // of each score
};

// One arrival.
struct LifelongStep {
  int64_t pool_before = 0, pool_after = 0;
  std::vector<int64_t> selected = {}, pool = {};  // samples; the pool after pruning
  std::vector<int32_t> labels = {};               // clusters of the pool before pruning (ids: `clustered`)
  std::vector<int64_t> clustered = {};
  std::vector<ClusterChoice> clusters = {};
  std::vector<double> shares = {};    // of the datasets in the selection
  std::vector<double> accuracy = {};  // by skill
  std::map<std::string, double> seconds = {};
};

struct LifelongResult {
  std::vector<std::string> skills = {};
  std::vector<LifelongStep> steps = {};
  // The mean over skills of the last row, and of how far each skill fell below its best.
  double accuracy() const;
  double forgetting() const;
};

// Collective: all ranks of the world take part, and return the same. Goes on where an earlier call ended, also after kill -9: state.json
// has the finished steps, each training its own snapshots.
LifelongResult run_lifelong(comm::World& world, const LifelongRecipe& recipe, const StudySetup& setup, const base::Stop& stop);

std::string to_tables(const LifelongResult& result);

}  // namespace cairn::study
