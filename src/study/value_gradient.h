// G-Shapley: the value of players by single steps of SGD along permutations, many permutations at once.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "study/value_utility.h"

namespace cairn::study {

// A classifier of dense layers (as model.hidden: max(0, x w^T + b), and a head), and what it is trained and measured on.
struct GradientGame {
  const LabelledRows& rows;                   // borrowed
  std::vector<std::vector<int64_t>> players;  // samples of each
  std::vector<int64_t> validation;            // rows
  std::vector<int64_t> hidden = {};           // widths; empty: logistic regression
  std::string metric = "accuracy";
  uint64_t seed = 0;
  at::Device device = at::kCPU;
};

class GradientValues {
 public:
  explicit GradientValues(GradientGame game);
  // Rows (permutation_row) of permutations first .. first + count - 1. Each begins with fresh weights, keyed by its number, and takes one
  // step for each player: the mean gradient of its samples. The parameters of all permutations are stacked, so a step of all is a few
  // batched products.
  std::vector<double> rows(int64_t first, int64_t count, double learning_rate) const;
  // Of 10^-1, 10^-1.5, ... 10^-4.5 the rate with the largest mean minus deviation of the score after one epoch, over ten fresh starts.
  double best_learning_rate() const;
  // The mean score of untrained models of these permutations.
  double untrained(int64_t first, int64_t count) const;

 private:
  struct Stack {
    std::vector<at::Tensor> weights, biases;  // [count, out, in], [count, 1, out]
  };
  Stack fresh(int64_t first, int64_t count) const;
  void step(Stack& stack, const std::vector<size_t>& players, double learning_rate) const;
  std::vector<double> scores(const Stack& stack) const;

  GradientGame game_;
  at::Tensor features_, labels_, measured_, measured_labels_;
  std::vector<int64_t> validation_labels_;
};

}  // namespace cairn::study
