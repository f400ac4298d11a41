// The recipe of an HDEE study: [study] and [ensemble], beside the sections that train every expert.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "base/schema.h"
#include "model/options.h"

namespace cairn::study {

// [study]
struct HdeeOptions {
  std::string kind = "hdee";
  std::string mode = "sizes";
  std::vector<std::string> compare = {};
  std::string uniform_size = "m";
  int64_t uniform_steps = 400;
  std::string difficulty = "given";
  int64_t probe_steps = 50;
  double epochs_max = 4;
  int64_t restarts = 3;
};
base::Schema<HdeeOptions> hdee_schema();

// [study.seed]
struct SeedOptions {
  int64_t steps = 0;
  double learning_rate = 0;
  int64_t warmup_steps = -1;
};
base::Schema<SeedOptions> seed_schema();

// [study.budget]
struct BudgetOptions {
  double flops = 0;
  double tolerance = 0.01;
  std::string solve;
};
base::Schema<BudgetOptions> budget_schema();

// [study.line.NAME], [study.domain.NAME], [study.island.NAME]; sizes are [study.size.NAME], with the keys of [model].
struct LineOptions {
  std::string size;
  int64_t steps = 0;
  std::vector<std::string> domains;
};
base::Schema<LineOptions> line_schema();

struct DomainOptions {
  std::string path;
};
base::Schema<DomainOptions> domain_schema();

struct IslandOptions {
  double speed = 1;
  double memory_gib = 0;
  std::string device = "cpu";
  std::vector<int64_t> cores;
  std::vector<std::string> launch;
};
base::Schema<IslandOptions> island_schema();

// [ensemble]
struct EnsembleOptions {
  std::string prior = "cached";
  int64_t prior_sequences = 100;
  double decay = 0.3;
  bool decay_by_power = false;
  int64_t top_k = 0;
  int64_t refresh = 32;
  int64_t test_sequences = 400;
};
base::Schema<EnsembleOptions> ensemble_schema();

// All sections of a recipe, with names checked against each other.
struct HdeeRecipe {
  HdeeOptions study;
  SeedOptions seed;
  BudgetOptions budget;
  EnsembleOptions ensemble;
  std::map<std::string, model::ModelOptions> sizes;
  std::map<std::string, LineOptions> lines;
  std::map<std::string, DomainOptions> domains;
  std::map<std::string, IslandOptions> islands;  // at least one
  base::Recipe::File training;                   // the recipe without these sections and [model]
  std::vector<std::string> sets;                 // --set of keys that remain in `training`

  // The modes to train: `mode` and those of `compare`, without duplicates.
  std::vector<std::string> modes() const;
  // The recipe of one run, with some keys set.
  base::Recipe training_with(const std::vector<std::pair<std::string, base::Setting>>& keys) const;
};

// Refuses unknown keys, sizes, domains and modes; names that cannot be folder names; a checkpoint whose shape contradicts its size.
HdeeRecipe read_hdee(const base::Recipe::File& file, const std::vector<std::string>& sets);

// Every section, for the reference page.
std::vector<base::Section> hdee_sections();

}  // namespace cairn::study
