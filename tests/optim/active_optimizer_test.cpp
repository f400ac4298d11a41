// What is frozen stands still and counts its own updates.
#include "optim/active_optimizer.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/aten.h"
#include "optim/options.h"

namespace cairn::optim {
namespace {

// AdamW written out for one element with decay, in double.
struct AdamwElement {
  double p, m = 0, v = 0;
  int64_t steps = 0;
  void step(double g, double rate) {
    ++steps;
    m = 0.9 * m + 0.1 * g;
    v = 0.95 * v + 0.05 * g * g;
    const double mean = m / (1 - std::pow(0.9, static_cast<double>(steps))), square = v / (1 - std::pow(0.95, static_cast<double>(steps)));
    p = p * (1 - rate * 0.1) - rate * mean / (std::sqrt(square) + 1e-8);
  }
};

OptimOptions active_options(const std::string& kind = "adamw") {
  OptimOptions options;
  options.kind = kind;
  return options;
}

double frozen_gradient(int64_t element, int64_t step) { return std::cos(static_cast<double>((element + 1) * step)) / 2; }

// Two parameters, "a" [2, 3] and "b" [4], under an active set.
struct ActivePair {
  std::vector<ParameterPiece> pieces;
  std::unique_ptr<ActiveOptimizer> rule;
  std::vector<AdamwElement> expected;  // a, then b

  explicit ActivePair(const std::string& kind = "adamw", bool by_element = false) {
    std::vector<mesh::Fragment> fragments;
    std::vector<ActiveSet::Member> members;
    for (const auto& [name, shape] : {std::pair<std::string, std::vector<int64_t>>{"a", {2, 3}}, {"b", {4}}}) {
      pieces.push_back({name, at::empty(shape, at::kFloat), at::empty(shape, at::kFloat)});
      for (int64_t i = 0; i < pieces.back().parameter.numel(); ++i) {
        pieces.back().parameter.mutable_data_ptr<float>()[i] = static_cast<float>(std::sin(static_cast<double>(i + 1)));
        expected.push_back({static_cast<double>(pieces.back().parameter.const_data_ptr<float>()[i])});
      }
      fragments.push_back(mesh::whole_tensor(shape));
      members.push_back({.name = name, .shape = shape, .by_element = by_element});
    }
    rule = std::make_unique<ActiveOptimizer>(make_optimizer(active_options(kind), pieces), pieces, fragments, ActiveSet(members));
  }

  void update(int64_t step, double rate = 0.01) {
    int64_t element = 0;
    for (const ParameterPiece& one : pieces)
      for (int64_t i = 0; i < one.gradient.numel(); ++i)
        one.gradient.mutable_data_ptr<float>()[i] = static_cast<float>(frozen_gradient(element++, step));
    rule->update_several(0, 2, {.step = step, .learning_rate = rate});
  }
  void expect(int64_t first, int64_t last, int64_t step, double rate = 0.01) {
    for (int64_t i = first; i < last; ++i) expected[static_cast<size_t>(i)].step(frozen_gradient(i, step), rate);
  }
  void check() const {
    size_t element = 0;
    for (const ParameterPiece& one : pieces)
      for (int64_t i = 0; i < one.parameter.numel(); ++i, ++element)
        EXPECT_NEAR(one.parameter.const_data_ptr<float>()[i], expected[element].p, 2e-6) << one.name << ", element " << i;
  }
};

TEST(ActiveOptimizer, AFrozenParameterStandsStillAndCountsItsOwnUpdates) {
  ActivePair pair;
  for (int64_t step = 1; step <= 9; ++step) {
    if (step == 3) pair.rule->freeze("a", 2);
    if (step == 7) pair.rule->activate("a", 6);
    const at::Tensor before = pair.pieces[0].parameter.clone();
    pair.update(step);
    const bool frozen = step >= 3 && step < 7;
    EXPECT_EQ(at::equal(before, pair.pieces[0].parameter), frozen) << "step " << step;
    if (!frozen) pair.expect(0, 6, step);
    pair.expect(6, 10, step);
  }
  pair.check();
}

TEST(ActiveOptimizer, ElementsFreezeOneByOne) {
  ActivePair pair("adamw", /*by_element=*/true);
  const mesh::Box second_row{{{1, 2}, {0, 3}}}, corner{{{0, 1}, {0, 1}}}, last_column{{{0, 2}, {2, 3}}};
  for (int64_t step = 1; step <= 12; ++step) {
    if (step == 3) pair.rule->activate("a", {second_row, corner}, 2);
    if (step == 6) pair.rule->activate("a", {last_column}, 5);
    if (step == 8) pair.rule->freeze("a", 7);
    if (step == 10) pair.rule->activate("a", 9);
    pair.update(step);
    for (int64_t i = 0; i < 6; ++i) {
      const bool moves = step < 3 || step >= 10 || (step < 6 && (i >= 3 || i == 0)) || (step >= 6 && step < 8 && i % 3 == 2);
      if (moves) pair.expect(i, i + 1, step);
    }
    pair.expect(6, 10, step);
  }
  pair.check();
}

TEST(ActiveOptimizer, RatesAndRestartsAreOfOneParameter) {
  ActivePair pair;
  pair.rule->set_learning_rate_factor("b", 3);
  for (int64_t step = 1; step <= 6; ++step) {
    if (step == 4) {
      pair.rule->restart("b", 3);
      for (const mesh::NamedTensor& one : pair.rule->state())
        if (one.name.ends_with(".b")) one.tensor.zero_();
      for (int64_t i = 6; i < 10; ++i) pair.expected[static_cast<size_t>(i)] = {pair.expected[static_cast<size_t>(i)].p};
    }
    pair.update(step);
    pair.expect(0, 6, step);
    pair.expect(6, 10, step, 0.03);
  }
  pair.check();
}

TEST(ActiveOptimizer, GoesOnFromItsSavedState) {
  ActivePair first("adamw", true), second("adamw", true);
  const auto change = [](ActivePair& pair, int64_t step) {
    if (step == 3) pair.rule->freeze("b", 2);
    if (step == 4) pair.rule->activate("a", {mesh::Box{{{0, 2}, {1, 2}}}}, 3);
    if (step == 6) pair.rule->activate("b", 5);
    if (step == 7) pair.rule->activate("a", 6);
  };
  for (int64_t step = 1; step <= 4; ++step) change(first, step), first.update(step);
  for (size_t i = 0; i < 2; ++i) second.pieces[i].parameter.copy_(first.pieces[i].parameter);
  const mesh::NamedTensors from = first.rule->state(), into = second.rule->state();
  ASSERT_EQ(from.size(), into.size());
  for (size_t i = 0; i < from.size(); ++i) into[i].tensor.copy_(from[i].tensor);
  ActiveSet set = second.rule->set();
  set.restore(first.rule->set().state());
  EXPECT_EQ(set.members(), first.rule->set().members());
  second.rule->replace_set(set);
  for (int64_t step = 5; step <= 8; ++step)
    for (ActivePair* one : {&first, &second}) change(*one, step), one->update(step);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(first.pieces[i].parameter, second.pieces[i].parameter)) << i;
}

TEST(ActiveOptimizer, WorksWithMomentumToo) {
  ActivePair pair("sgd", true), plain("sgd");
  for (int64_t step = 1; step <= 4; ++step) {
    pair.rule->activate("a", {mesh::Box{{{0, 1}, {0, 3}}}}, step - 1);
    pair.update(step);
    plain.update(step);
  }
  EXPECT_TRUE(at::equal(pair.pieces[0].parameter[0], plain.pieces[0].parameter[0]));
  for (int64_t i = 3; i < 6; ++i) EXPECT_EQ(pair.pieces[0].parameter.const_data_ptr<float>()[i], std::sin(static_cast<float>(i + 1)));
}

TEST(ActiveOptimizer, RefusesElementsOfRulesThatUpdateWholeMatrices) {
  try {
    ActivePair pair("adafactor", true);
    FAIL() << "adafactor keeps sums over rows";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("a: elements of it cannot be frozen one by one"));
  }
}

TEST(ActiveSet, RefusesNamesAndSavedStatesOfOthers) {
  ActivePair pair;
  EXPECT_THROW(pair.rule->freeze("c", 0), Error);
  ActiveSet of_one({{.name = "a", .shape = {2, 3}}});
  pair.rule->freeze("a", 0);
  EXPECT_THROW(of_one.restore(pair.rule->set().state()), Error);
}

}  // namespace
}  // namespace cairn::optim
