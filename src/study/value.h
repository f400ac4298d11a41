// A study of values: what each training example, or each source, is worth to a model (Data Shapley).
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "study/value_options.h"

namespace cairn::base {
class Log;
class Stop;
}  // namespace cairn::base

namespace cairn::study {

struct StudySetup {
  std::filesystem::path out;         // results; a study that is there goes on
  std::filesystem::path cache = {};  // of tokenized text; empty: none
  int processes = 1;
  int threads = 1;                             // of each process
  std::function<void(int pid)> on_start = {};  // called for every process that is started
  // Puts samples into the order in which they are scored, the same on all ranks: results must not depend on it. Empty: as drawn.
  std::function<void(std::vector<int64_t>& samples)> scoring_order = {};
};

// A line of a plot: what is left after removing a share of the players, what has been found, and so on.
struct ValueCurve {
  std::string plot, label;  // "removal", "highest first"
  std::vector<std::pair<double, double>> points = {};
};

struct ValueResult {
  ValueOptions options = {};
  std::vector<std::string> names = {};  // of the players
  std::vector<double> values = {};
  std::vector<double> errors = {};      // standard errors; 0 where the method is exact
  double full = 0, empty = 0;           // V of all players, and of none
  double full_mean = 0, deviation = 0;  // V of all over 100 resamples of the validation samples
  int64_t permutations = 0;
  double trainings = 0, position = 0;  // in all; the mean number of players before a permutation ended
  double change = 0;                   // the convergence error at the end
  bool converged = true;
  double learning_rate = 0;            // g
  double training_s = 0, seconds = 0;  // of one training on everything; of the study
  std::vector<ValueCurve> curves = {};
};

struct ValueRecipe {
  ValueOptions study;
  base::Recipe training;
};
// Refuses unknown keys, and values that contradict each other.
ValueRecipe read_value(const base::Recipe::File& file, const std::vector<std::string>& sets);

// Writes values.csv, results.json, pictures and, for texts, values.scores for `cairn select top`. Goes on where an earlier call with the
// same recipe ended. Values do not depend on the number of processes.
ValueResult run_value(const ValueRecipe& recipe, const StudySetup& setup, base::Log& log, const base::Stop& stop);

std::string to_tables(const ValueResult& result);

}  // namespace cairn::study
