#include "study/value_utility.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/random.h"

namespace cairn::study {
namespace {

int64_t likeliest(const Predictions& predictions, size_t row) {
  const auto begin = predictions.log_probabilities.begin() + static_cast<int64_t>(row) * predictions.classes;
  return std::max_element(begin, begin + predictions.classes) - begin;
}

double log_probability(const Predictions& predictions, size_t row, int64_t label) {
  return predictions.log_probabilities[row * static_cast<size_t>(predictions.classes) + static_cast<size_t>(label)];
}

double neg_loss(const Predictions& predictions, std::span<const int64_t> labels) {
  double sum = 0, count = 0;
  if (predictions.classes == 0) {
    for (size_t i = 0; i < predictions.losses.size(); ++i)
      sum -= predictions.losses[i] * predictions.targets[i], count += predictions.targets[i];
    return sum / std::max(1.0, count);
  }
  for (size_t i = 0; i < labels.size(); ++i) sum += log_probability(predictions, i, labels[i]);
  return sum / static_cast<double>(labels.size());
}

double accuracy(const Predictions& predictions, std::span<const int64_t> labels) {
  int64_t right = 0;
  for (size_t i = 0; i < labels.size(); ++i) right += likeliest(predictions, i) == labels[i];
  return static_cast<double>(right) / static_cast<double>(labels.size());
}

// The probability that a row of class 1 has a higher score than one of class 0 (ties count half), by ranks.
double auc(const Predictions& predictions, std::span<const int64_t> labels) {
  std::vector<double> margin(labels.size());
  for (size_t i = 0; i < labels.size(); ++i) margin[i] = log_probability(predictions, i, 1) - log_probability(predictions, i, 0);
  std::vector<size_t> order(labels.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return margin[a] < margin[b]; });
  double ranks = 0, ones = 0;
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && margin[order[end]] == margin[order[begin]]) ++end;
    const double rank = (static_cast<double>(begin + end) + 1) / 2;  // of equal margins, the mean of their ranks
    for (size_t i = begin; i < end; ++i)
      if (labels[order[i]] == 1) ranks += rank, ++ones;
    begin = end;
  }
  const double zeros = static_cast<double>(labels.size()) - ones;
  return ones == 0 || zeros == 0 ? 0.5 : (ranks - ones * (ones + 1) / 2) / (ones * zeros);
}

double f1_of(std::span<const int64_t> predicted, std::span<const int64_t> labels) {
  double both = 0, either = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    both += predicted[i] == 1 && labels[i] == 1;
    either += static_cast<double>(predicted[i] == 1) + static_cast<double>(labels[i] == 1);
  }
  return either == 0 ? 0 : 2 * both / either;
}

double f1(const Predictions& predictions, std::span<const int64_t> labels) {
  std::vector<int64_t> predicted(labels.size());
  for (size_t i = 0; i < labels.size(); ++i) predicted[i] = likeliest(predictions, i);
  return f1_of(predicted, labels);
}

class TrainedUtility final : public Utility {
 public:
  explicit TrainedUtility(UtilityParts parts) : parts_(std::move(parts)) {
    for (const int64_t row : parts_.rows)
      if (!parts_.labels.empty()) labels_.push_back(parts_.labels[static_cast<size_t>(row)]);
    seen_.assign(static_cast<size_t>(parts_.classes), false);
    for (const int64_t label : labels_) seen_[static_cast<size_t>(label)] = true;
    const Predictions none = parts_.learner.untrained(parts_.rows);
    const bool known = none.classes > 0 || !none.losses.empty();
    empty_ = known && parts_.metric == "neg_loss" && labels_.empty() ? score(parts_.metric, none, labels_)
                                                                     : untrained_score(parts_.metric, labels_, parts_.classes, 0);
  }

  double value(std::span<const int64_t> samples) const override {
    if (samples.empty()) return empty_;
    return score(parts_.metric, parts_.learner.predict(samples, parts_.rows), labels_);
  }
  double empty() const override { return empty_; }

  bool covers(std::span<const int64_t> samples) const override {
    if (!parts_.needs_all_classes || parts_.labels.empty()) return true;
    std::vector<bool> missing = seen_;
    for (const int64_t sample : samples) missing[static_cast<size_t>(parts_.labels[static_cast<size_t>(sample)])] = false;
    return std::none_of(missing.begin(), missing.end(), [](bool one) { return one; });
  }

  std::vector<double> resampled(std::span<const int64_t> samples, int64_t count, uint64_t seed) const override {
    const Predictions all = parts_.learner.predict(samples, parts_.rows);
    std::vector<double> scores;
    const base::Random random = base::Random(seed).for_purpose("bootstrap");
    const size_t rows = parts_.rows.size();
    for (int64_t i = 0; i < count; ++i) {
      Predictions drawn{.classes = all.classes};
      std::vector<int64_t> labels;
      for (size_t k = 0; k < rows; ++k) {
        const auto row = static_cast<size_t>(random.for_index(static_cast<uint64_t>(i)).below(k, rows));
        for (int64_t c = 0; c < all.classes; ++c) drawn.log_probabilities.push_back(log_probability(all, row, c));
        if (!all.losses.empty()) drawn.losses.push_back(all.losses[row]), drawn.targets.push_back(all.targets[row]);
        if (!labels_.empty()) labels.push_back(labels_[row]);
      }
      scores.push_back(score(parts_.metric, drawn, labels));
    }
    return scores;
  }

 private:
  UtilityParts parts_;
  std::vector<int64_t> labels_;  // of the validation samples
  std::vector<bool> seen_;       // classes among them
  double empty_ = 0;
};

}  // namespace

std::vector<double> Utility::resampled(std::span<const int64_t> samples, int64_t count, uint64_t /*seed*/) const {
  return std::vector<double>(static_cast<size_t>(count), value(samples));
}

double score(const std::string& metric, const Predictions& predictions, std::span<const int64_t> labels) {
  if (metric == "neg_loss") return neg_loss(predictions, labels);
  CAIRN_CHECK(predictions.classes > 0, "{} of predictions without classes", metric);
  if (metric == "accuracy") return accuracy(predictions, labels);
  if (predictions.classes != 2)
    base::fail_input("study.metric = {}: is for two classes, and there are {}. Use accuracy or neg_loss.", metric, predictions.classes);
  return metric == "auc" ? auc(predictions, labels) : f1(predictions, labels);
}

double untrained_score(const std::string& metric, std::span<const int64_t> labels, int64_t classes, uint64_t seed) {
  constexpr uint64_t kShuffles = 1000;
  if (metric == "auc") return 0.5;
  std::vector<double> share(static_cast<size_t>(classes));
  for (const int64_t label : labels) share[static_cast<size_t>(label)] += 1.0 / static_cast<double>(labels.size());
  if (metric == "accuracy") return *std::max_element(share.begin(), share.end());
  if (metric == "neg_loss") {
    double sum = 0;
    for (const double p : share) sum += p > 0 ? p * std::log(p) : 0;
    return sum;
  }
  double sum = 0;
  for (uint64_t shuffle = 0; shuffle < kShuffles; ++shuffle) {
    const base::Random random = base::Random(seed).for_purpose("shuffled labels").for_index(shuffle);
    std::vector<int64_t> drawn(labels.begin(), labels.end());
    for (size_t i = drawn.size(); i > 1; --i) std::swap(drawn[i - 1], drawn[random.below(i, i)]);
    sum += f1_of(drawn, labels);
  }
  return sum / static_cast<double>(kShuffles);
}

std::unique_ptr<Utility> make_utility(UtilityParts parts) { return std::make_unique<TrainedUtility>(std::move(parts)); }

}  // namespace cairn::study
