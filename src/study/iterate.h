// Selection in rounds (Diversify and Conquer): clusters of samples share the budget of a round by weights; after a short training the
// weights follow how much each cluster's samples help.
//
//   D grows by budget / rounds samples:  quotas by w, inside a cluster by quality
//   train on D from the recipe's start;  s_j = mean score of cluster j's samples
//   w_j <- w_j exp(s_j) / sum,  at least floor / clusters
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "study/iterate_options.h"
#include "study/value.h"

namespace cairn::comm {
class World;
}

namespace cairn::study {

struct IterateRecipe {
  IterateOptions study;
  base::Recipe training;
};
IterateRecipe read_iterate(const base::Recipe::File& file, const std::vector<std::string>& sets);

struct IterateRound {
  std::vector<int64_t> added = {};   // samples, ascending
  std::vector<double> weights = {};  // of the clusters, that they were drawn by
  std::vector<int64_t> quotas = {};
  std::vector<double> scores = {};  // mean of each cluster; NaN: none was scored
  double effective = 0;             // clusters: the exponential of the entropy of the weights
  double seconds = 0;
};

struct IterateResult {
  std::vector<int32_t> labels = {};  // the cluster of every training sample
  std::vector<int64_t> sizes = {};   // of the clusters
  std::vector<IterateRound> rounds = {};
  std::vector<double> weights = {};    // after the last round
  std::vector<int64_t> selected = {};  // all samples, ascending
  double loss = 0, accuracy = 0;       // of the last training, on held-out samples
};

// Collective: all ranks of the world take part, and return the same. Goes on where an earlier call ended.
IterateResult run_iterate(comm::World& world, const IterateRecipe& recipe, const StudySetup& setup, const base::Stop& stop);

std::string to_tables(const IterateResult& result);

}  // namespace cairn::study
