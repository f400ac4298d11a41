#include "study/value_gradient.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/IListRef.h>
#include <ATen/ops/baddbmm.h>
#include <fmt/format.h>

#include "base/random.h"
#include "kernels/aten.h"
#include "study/value_estimators.h"

namespace cairn::study {
namespace {

constexpr int64_t kRateTrials = 10;
constexpr int64_t kRateTrialsFirst = int64_t{1} << 40;  // permutations that no estimate uses

// x w^T + b for stacked x [count, rows, in] or shared x [rows, in].
at::Tensor affine(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  return at::baddbmm(b, x.dim() == 3 ? x : x.unsqueeze(0).expand({w.size(0), x.size(0), x.size(1)}), w.transpose(1, 2));
}

}  // namespace

GradientValues::GradientValues(GradientGame game) : game_(std::move(game)) {
  const LabelledRows& rows = game_.rows;
  const auto samples = static_cast<int64_t>(rows.labels.size());
  features_ = at::empty({samples, rows.features}, at::kDouble);
  std::copy(rows.values.begin(), rows.values.end(), features_.data_ptr<double>());
  features_ = features_.to(game_.device, at::kFloat);
  labels_ = at::empty({samples}, at::kLong);
  std::copy(rows.labels.begin(), rows.labels.end(), labels_.data_ptr<int64_t>());
  labels_ = labels_.to(game_.device);
  at::Tensor which = at::empty({static_cast<int64_t>(game_.validation.size())}, at::kLong);
  std::copy(game_.validation.begin(), game_.validation.end(), which.data_ptr<int64_t>());
  which = which.to(game_.device);
  measured_ = features_.index_select(0, which);
  measured_labels_ = labels_.index_select(0, which);
  for (const int64_t row : game_.validation) validation_labels_.push_back(rows.labels[static_cast<size_t>(row)]);
}

GradientValues::Stack GradientValues::fresh(int64_t first, int64_t count) const {
  std::vector<int64_t> widths{game_.rows.features};
  widths.insert(widths.end(), game_.hidden.begin(), game_.hidden.end());
  widths.push_back(game_.rows.classes);
  Stack stack;
  for (size_t layer = 0; layer + 1 < widths.size(); ++layer) {
    const int64_t in = widths[layer], out = widths[layer + 1];
    const double deviation = std::sqrt((layer + 2 == widths.size() ? 1.0 : 2.0) / static_cast<double>(in));
    const at::Tensor weights = at::empty({count, out, in}, at::kFloat);
    for (int64_t t = 0; t < count; ++t)
      base::Random(game_.seed)
          .for_purpose("weights")
          .for_index(static_cast<uint64_t>(first + t))
          .for_index(layer)
          .fill_normal({weights.data_ptr<float>() + t * out * in, static_cast<size_t>(out * in)});
    stack.weights.push_back(weights.mul_(deviation).to(game_.device));
    stack.biases.push_back(at::zeros({count, 1, out}, stack.weights.back().options()));
  }
  return stack;
}

void GradientValues::step(Stack& stack, const std::vector<size_t>& players, double learning_rate) const {
  const auto count = static_cast<int64_t>(players.size());
  int64_t most = 0;
  for (const size_t one : players) most = std::max(most, static_cast<int64_t>(game_.players[one].size()));
  const at::Tensor which = at::zeros({count * most}, at::kLong), share = at::zeros({count, most, 1}, at::kFloat);
  for (int64_t t = 0; t < count; ++t) {
    const std::vector<int64_t>& samples = game_.players[players[static_cast<size_t>(t)]];
    for (size_t k = 0; k < samples.size(); ++k) {
      which.data_ptr<int64_t>()[t * most + static_cast<int64_t>(k)] = samples[k];
      share.data_ptr<float>()[t * most + static_cast<int64_t>(k)] = 1.0F / static_cast<float>(samples.size());
    }
  }
  const at::Tensor here = which.to(game_.device);
  std::vector<at::Tensor> inputs{features_.index_select(0, here).view({count, most, -1})};
  const size_t layers = stack.weights.size();
  for (size_t layer = 0; layer < layers; ++layer) {
    const at::Tensor y = affine(inputs.back(), stack.weights[layer], stack.biases[layer]);
    inputs.push_back(layer + 1 < layers ? y.clamp_min(0) : y);
  }
  const at::Tensor targets = labels_.index_select(0, here).view({count, most, 1});
  at::Tensor dy = inputs.back().softmax(2);
  dy = dy.scatter_add(2, targets, at::full({count, most, 1}, -1.0, dy.options())) * share.to(game_.device);
  for (size_t layer = layers; layer-- > 0;) {
    const at::Tensor dw = at::matmul(dy.transpose(1, 2), inputs[layer]), db = dy.sum(1, /*keepdim=*/true);
    if (layer > 0) dy = at::matmul(dy, stack.weights[layer]) * inputs[layer].gt(0);
    stack.weights[layer].sub_(dw, learning_rate);
    stack.biases[layer].sub_(db, learning_rate);
  }
}

std::vector<double> GradientValues::scores(const Stack& stack) const {
  at::Tensor x = measured_;
  for (size_t layer = 0; layer < stack.weights.size(); ++layer) {
    x = affine(x, stack.weights[layer], stack.biases[layer]);
    if (layer + 1 < stack.weights.size()) x = x.clamp_min(0);
  }
  const int64_t count = x.size(0), rows = x.size(1), classes = x.size(2);
  const at::Tensor labels = measured_labels_.view({1, rows, 1}).expand({count, rows, 1});
  at::Tensor found;
  if (game_.metric == "accuracy") found = std::get<1>(x.max(2)).eq(labels.squeeze(2)).to(at::kDouble).mean(1);
  if (game_.metric == "neg_loss") found = x.log_softmax(2).gather(2, labels).to(at::kDouble).mean({1, 2});
  std::vector<double> all(static_cast<size_t>(count));
  if (found.defined()) {
    found = found.cpu();
    std::copy_n(found.const_data_ptr<double>(), count, all.begin());
    return all;
  }
  const at::Tensor log_probabilities = x.to(at::kDouble).log_softmax(2).cpu().contiguous();
  for (int64_t t = 0; t < count; ++t) {
    const double* const begin = log_probabilities.const_data_ptr<double>() + t * rows * classes;
    all[static_cast<size_t>(t)] =
        score(game_.metric, {.classes = classes, .log_probabilities = {begin, begin + rows * classes}}, validation_labels_);
  }
  return all;
}

std::vector<double> GradientValues::rows(int64_t first, int64_t count, double learning_rate) const {
  const size_t n = game_.players.size(), width = n + kRowTail;
  std::vector<double> found(static_cast<size_t>(count) * width);
  std::vector<std::vector<size_t>> orders;
  for (int64_t t = 0; t < count; ++t) orders.push_back(order_of_players(game_.seed, first + t, n));
  Stack stack = fresh(first, count);
  std::vector<double> before = scores(stack);
  std::vector<size_t> players(static_cast<size_t>(count));
  for (size_t place = 0; place < n; ++place) {
    for (size_t t = 0; t < players.size(); ++t) players[t] = orders[t][place];
    step(stack, players, learning_rate);
    const std::vector<double> now = scores(stack);
    for (size_t t = 0; t < players.size(); ++t) found[t * width + players[t]] = now[t] - before[t];
    before = now;
  }
  for (size_t t = 0; t < players.size(); ++t) {
    found[t * width + n] = 1;
    found[t * width + n + 1] = static_cast<double>(n);
    found[t * width + n + 2] = before[t];
  }
  return found;
}

double GradientValues::best_learning_rate() const {
  double best = 0, best_score = -INFINITY;
  std::vector<std::vector<size_t>> orders;
  for (int64_t t = 0; t < kRateTrials; ++t) orders.push_back(order_of_players(game_.seed, kRateTrialsFirst + t, game_.players.size()));
  for (int power = 2; power <= 9; ++power) {
    const double rate = std::pow(10.0, -power / 2.0);
    Stack stack = fresh(kRateTrialsFirst, kRateTrials);
    std::vector<size_t> players(kRateTrials);
    for (size_t place = 0; place < game_.players.size(); ++place) {
      for (size_t t = 0; t < players.size(); ++t) players[t] = orders[t][place];
      step(stack, players, rate);
    }
    double sum = 0, squares = 0;
    for (const double one : scores(stack)) sum += one, squares += one * one;
    const double mean = sum / kRateTrials, deviation = std::sqrt(std::max(0.0, squares / kRateTrials - mean * mean));
    if (mean - deviation > best_score) best = rate, best_score = mean - deviation;
  }
  return best;
}

double GradientValues::untrained(int64_t first, int64_t count) const {
  double sum = 0;
  for (const double one : scores(fresh(first, count))) sum += one;
  return sum / static_cast<double>(count);
}

}  // namespace cairn::study
