// Matrices of adapters in modules: the modules make up the matrix, a training pass computes with one, and merged they are the mean.
#include "model/decoder/adapter_matrix.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/aten.h"
#include "mesh/axes.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/losses/consistency.h"
#include "model/model.h"
#include "model/trainable.h"

namespace cairn::model {
namespace {

AdapterMatrix split_matrix(int64_t out, int64_t in, int64_t modules, ModuleSplit split = ModuleSplit::all, int64_t seed = 0) {
  return AdapterMatrix({.name = "m", .out = out, .in = in, .modules = modules, .split = split, .seed = seed});
}

class ModuleMasks : public testing::TestWithParam<std::tuple<ModuleSplit, int64_t>> {};

TEST_P(ModuleMasks, AreDisjointAndCoverTheMatrixInEqualParts) {
  const auto [split, modules] = GetParam();
  constexpr int64_t kOut = 11, kIn = 7;
  const AdapterMatrix matrix = split_matrix(kOut, kIn, modules, split);
  const std::vector<int64_t> order = matrix.module_order();
  std::set<int64_t> all(order.begin(), order.end());
  ASSERT_EQ(order.size(), static_cast<size_t>(kOut * kIn));
  EXPECT_EQ(all.size(), order.size());
  EXPECT_EQ(*all.begin(), 0);
  EXPECT_EQ(*all.rbegin(), kOut * kIn - 1);
  int64_t at = 0;
  std::vector<int64_t> sizes;
  for (int64_t n = 0; n < modules; ++n) {
    sizes.push_back(matrix.module_elements(n));
    EXPECT_TRUE(std::is_sorted(order.begin() + at, order.begin() + at + sizes.back()));
    if (split != ModuleSplit::all) {  // as many of every row, or column, but for one
      std::vector<int64_t> counts(static_cast<size_t>(split == ModuleSplit::row ? kOut : kIn), 0);
      for (int64_t i = at; i < at + sizes.back(); ++i)
        ++counts[static_cast<size_t>(split == ModuleSplit::row ? order[static_cast<size_t>(i)] / kIn
                                                               : order[static_cast<size_t>(i)] % kIn)];
      EXPECT_LE(std::ranges::max(counts) - std::ranges::min(counts), 0);
    }
    at += sizes.back();
  }
  EXPECT_EQ(at, kOut * kIn);
  if (split == ModuleSplit::all) {
    EXPECT_LE(std::ranges::max(sizes) - std::ranges::min(sizes), 1);
  }
  EXPECT_EQ(split_matrix(kOut, kIn, modules, split).module_order(), order);
  EXPECT_NE(split_matrix(kOut, kIn, modules, split, 1).module_order(), order);
}

INSTANTIATE_TEST_SUITE_P(Splits, ModuleMasks,
                         testing::Combine(testing::Values(ModuleSplit::all, ModuleSplit::row, ModuleSplit::column),
                                          testing::Values(2, 4, 7)));

TEST(ModuleDraws, AreDifferentForEveryMatrixAndPassAndEquallyLikely) {
  std::vector<int64_t> counts(4, 0);
  int64_t alike = 0;
  for (uint64_t step = 0; step < 2000; ++step) {
    const base::Random pass = base::Random(3).for_index(step);
    const int64_t one = drawn_module(pass, "layers.0.up", 4);
    ++counts[static_cast<size_t>(one)];
    alike += one == drawn_module(pass, "layers.1.up", 4);
  }
  for (const int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), 500, 80);
  EXPECT_NEAR(static_cast<double>(alike), 500, 80);
}

TEST(AdapterMatrix, RefusesMoreModulesThanElements) {
  try {
    split_matrix(3, 2, 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_THAT(error.what(), testing::HasSubstr("model.adapter.modules = 7: m is 3 x 2"));
  }
  EXPECT_THROW(split_matrix(3, 2, 3, ModuleSplit::row), Error);  // a row has two
}

// A decoder with adapters in modules and values of its own.
struct InModules {
  AdapterShape shape;
  std::unique_ptr<Model> model;
  at::Tensor flat;
  Buffers buffers;

  explicit InModules(int64_t modules = 4) : shape{.rank = 3, .kind = AdapterKind::mosa} {
    shape.style = AdapterStyle::adaptformer, shape.modules = modules;
    model = make_decoder({.vocab = 13, .embed = 10, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 4, .mlp = 12, .length = 6}, shape);
    flat = at::empty({model->elements()});
    initialize_parameters(*model, flat, base::Random(2));
    for (const mesh::NamedTensor& one : model->layout().views(flat))
      if (one.name.find("_adapter.up") != std::string::npos)
        one.tensor.copy_(at::linspace(-0.7, 0.9, one.tensor.numel()).view(one.tensor.sizes()));
    buffers = model->make_buffers(at::kFloat);
  }

  at::Tensor logits(int64_t module) {
    const FlatWeights weights(model->layout(), flat);
    const mesh::Axes alone;
    const PassOptions options{.module = module};
    const Call call{.weights = weights, .buffers = buffers, .axes = alone, .needs = {false, false}, .options = options};
    Values values;
    values.put("tokens", at::arange(5).view({1, 5}));
    for (const auto& block : model->blocks()) block->forward(values, nullptr, call);
    return values.take("logits");
  }

  // As a call computes with it.
  std::pair<at::Tensor, at::Tensor> up(int64_t module) {
    mesh::ParamId weight, bias;
    for (size_t i = model->parameters().size(); i-- > 0;) {
      if (model->parameters()[i].name == "model.layers.0.mlp_adapter.up.modules.0.weight") weight = {static_cast<int32_t>(i)};
      if (model->parameters()[i].name == "model.layers.0.mlp_adapter.up.modules.0.bias") bias = {static_cast<int32_t>(i)};
    }
    const AdapterMatrix matrix(
        {.name = "model.layers.0.mlp_adapter.up", .out = 10, .in = 3, .modules = shape.modules, .weight = weight, .bias = bias});
    const FlatWeights weights(model->layout(), flat);
    const mesh::Axes alone;
    const PassOptions options{.module = module};
    const Call call{.weights = weights, .buffers = buffers, .axes = alone, .needs = {false, false}, .options = options};
    return {matrix.weight(call), matrix.bias(call)};
  }
};

TEST(AdapterMatrix, MergedModulesAreTheirMean) {
  InModules one;
  at::Tensor weights = at::zeros({10, 3}), biases = at::zeros({10}), elements = at::zeros({10, 3});
  for (int64_t n = 0; n < 4; ++n) {
    const auto [weight, bias] = one.up(n);
    weights += weight, biases += bias, elements += weight.ne(0).to(at::kFloat);
  }
  const auto [merged, merged_bias] = one.up(kModulesByPass);
  EXPECT_TRUE(at::equal(merged, weights / 4));
  EXPECT_TRUE(at::equal(merged_bias, biases / 4));
  EXPECT_LE(elements.max().item<float>(), 1);  // each element belongs to one module
  EXPECT_TRUE(at::equal(one.up(kModulesAddedUp).first, weights));
  EXPECT_FALSE(at::equal(one.logits(0), one.logits(1)));
  EXPECT_FALSE(at::equal(one.logits(kModulesByPass), one.logits(kModulesAddedUp)));
}

TEST(AdapterMatrix, OneModuleIsAnOrdinaryAdapter) {
  InModules one(1);
  AdapterShape plain = one.shape;
  plain.kind = AdapterKind::bottleneck;
  const auto ordinary =
      make_decoder({.vocab = 13, .embed = 10, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 4, .mlp = 12, .length = 6}, plain);
  ASSERT_EQ(ordinary->parameters().size(), one.model->parameters().size());
  for (size_t i = 0; i < ordinary->parameters().size(); ++i) EXPECT_EQ(ordinary->parameters()[i].name, one.model->parameters()[i].name);
}

TEST(Consistency, DrawsLogitsToThoseOfAnotherPass) {
  const auto own = std::shared_ptr<const Objective>(make_next_token());
  const auto objective = make_consistency(own, {.own = 0.5, .agreement = 2});
  mesh::Batch batch;
  batch.ids = at::arange(2);
  batch.weights = at::tensor({1.0f, 0.25f});
  batch.fields["targets"] = {at::tensor({1, -100, 4, 0}, at::kLong).view({2, 2})};
  const at::Tensor logits = at::linspace(-1, 2, 20, at::kDouble).view({2, 2, 5}),
                   other = at::linspace(3, -2, 20, at::kDouble).view({2, 2, 5});
  const at::Tensor direction = (at::arange(20) * 7).remainder(11).to(at::kDouble).view({2, 2, 5}) - 5;
  const mesh::Axes alone;
  const auto evaluate = [&](const at::Tensor& at, Values* gradients) {
    Values outputs;
    outputs.put("logits", at.clone());
    outputs.put(kOtherLogits, other);
    return objective->evaluate(outputs, batch, gradients, 1.5, alone);
  };
  const auto total = [&](const at::Tensor& at) {
    const Losses losses = evaluate(at, nullptr);
    return 1.5 * (0.5 * losses.sum.item<double>() + 2 * losses.measures[0].item<double>());
  };
  Values gradients;
  evaluate(logits, &gradients);
  constexpr double kStep = 1e-5;
  const double slope = (total(logits + kStep * direction) - total(logits - kStep * direction)) / (2 * kStep);
  EXPECT_NEAR((gradients.take("logits") * direction).sum().item<double>(), slope, 1e-6 * std::abs(slope));
  EXPECT_GT(evaluate(logits, nullptr).measures[0].item<double>(), 0.1);
  Values alone_outputs;
  alone_outputs.put("logits", logits.clone());
  EXPECT_TRUE(std::isnan(objective->evaluate(alone_outputs, batch, nullptr, 1, alone).measures[0].item<double>()));
}

}  // namespace
}  // namespace cairn::model
