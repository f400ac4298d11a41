// A study of values while it runs: data, players, learner and game.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "study/study_samples.h"
#include "study/value.h"
#include "study/value_estimators.h"
#include "study/value_gradient.h"

namespace cairn::study {

struct ValueStudy {
  ValueOptions options;
  StudySamples data;
  LabelledRows rows;                               // of tables
  std::vector<std::string> names;                  // of the players
  std::vector<std::vector<int64_t>> players;       // samples of each
  std::vector<int64_t> validation, held_out;       // samples that V, and the curves, are measured on
  std::vector<bool> corrupted;                     // by player; empty: not known
  std::vector<int64_t> candidates;                 // further samples
  std::vector<std::unique_ptr<Learner>> learners;  // one for each seed
  std::unique_ptr<Utility> utility, held_out_utility;
  std::optional<GradientValues> gradient;  // method g
  uint64_t seed = 0;
  uint64_t identity = 0;  // of all that the values depend on
};

// Opens everything. The study must not move in memory: learners and utilities borrow from it.
std::unique_ptr<ValueStudy> open_value_study(const ValueRecipe& recipe, const StudySetup& setup, base::Log& log, const base::Stop& stop);

// The curves of a finished estimate: removal, detection, acquisition.
std::vector<ValueCurve> value_curves(const ValueStudy& study, const std::vector<double>& values, base::Log& log);

void write_value_report(const ValueStudy& study, const ValueResult& result, const std::filesystem::path& out);
// A score for each document of the texts (data/selection), so that `cairn select top` can choose by value.
void write_value_column(const ValueStudy& study, const ValueRecipe& recipe, const ValueResult& result, const StudySetup& setup,
                        base::Log& log);

}  // namespace cairn::study
