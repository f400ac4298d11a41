// V(S): what a model is worth that was trained on a subset of the samples. The seam of studies of values.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cairn::study {

// What a model says about some rows.
struct Predictions {
  int64_t classes = 0;                         // 0: only losses are known
  std::vector<double> log_probabilities = {};  // [rows, classes]
  std::vector<double> losses = {};             // [rows]: mean cross entropy of the targets of a row
  std::vector<double> targets = {};            // [rows]: their number
};

// Trains a model from scratch on samples of one data set, and predicts others. Pure: the same samples, in any order, give the same model.
class Learner {
 public:
  virtual ~Learner() = default;
  virtual Predictions predict(std::span<const int64_t> training, std::span<const int64_t> rows) const = 0;
  // Of a model that was not trained; empty: the metric knows what that is worth.
  virtual Predictions untrained(std::span<const int64_t> /*rows*/) const { return {}; }
};

class Utility {
 public:
  virtual ~Utility() = default;
  // The score of a model that was trained on these samples alone. Thread-compatible, deterministic.
  virtual double value(std::span<const int64_t> samples) const = 0;
  // V of no samples.
  virtual double empty() const = 0;
  // Whether a model can be trained on these samples; if not, they are worth what none are.
  virtual bool covers(std::span<const int64_t> /*samples*/) const { return true; }
  // V of these samples on `count` resamples of the validation samples.
  virtual std::vector<double> resampled(std::span<const int64_t> samples, int64_t count, uint64_t seed) const;
};

// The score of predictions: accuracy, auc, f1 (two classes) or neg_loss. `labels`: of the rows; not read for neg_loss of losses alone.
double score(const std::string& metric, const Predictions& predictions, std::span<const int64_t> labels);
// The score of a model that knows nothing: the share of the largest class, 0.5, the mean over 1,000 shuffles of the labels, or minus the
// entropy of the labels.
double untrained_score(const std::string& metric, std::span<const int64_t> labels, int64_t classes, uint64_t seed);

struct UtilityParts {
  const Learner& learner;  // borrowed
  std::string metric = "accuracy";
  std::vector<int64_t> rows = {};    // validation samples
  std::vector<int64_t> labels = {};  // of all samples of the data set; empty: they have none
  int64_t classes = 0;
  bool needs_all_classes = true;  // Utility::covers
};
std::unique_ptr<Utility> make_utility(UtilityParts parts);

// Ridge-logistic regression, fitted by Newton's method to convergence.
struct LabelledRows {
  int64_t features = 0, classes = 0;
  std::vector<double> values = {};   // [samples, features]
  std::vector<int64_t> labels = {};  // [samples]
};
std::unique_ptr<Learner> make_logistic_learner(const LabelledRows& rows /*borrowed*/, double ridge);

}  // namespace cairn::study
