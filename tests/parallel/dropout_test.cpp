// Dropout in a decoder: its gradients are those of the function with that mask, and evaluation knows nothing of it.
#include "kernels/dropout.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "kernels/fill_normal.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/objective.h"
#include "parallel/pass.h"

namespace cairn::parallel {
namespace {

struct Dropped {
  model::AdapterShape adapter = {};
  std::unique_ptr<model::Model> model = model::make_decoder({.vocab = 23,
                                                             .embed = 12,
                                                             .layers = 2,
                                                             .heads = 2,
                                                             .kv_heads = 1,
                                                             .head_dim = 6,
                                                             .mlp = 14,
                                                             .length = 7,
                                                             .dropout = adapter.rank > 0 ? 0.0 : 0.3},
                                                            adapter);
  mesh::FlatLayout layout = model->layout();
  model::Buffers buffers = model->make_buffers(at::TensorOptions().dtype(at::kDouble));
  std::unique_ptr<model::Objective> objective = model::make_next_token();
  mesh::Batch batch;

  explicit Dropped(const model::AdapterShape& adapters = {}) : adapter(adapters) {
    batch.ids = at::arange(5, 8);
    batch.fields["tokens"] = {(at::arange(21) * 5).remainder(23).view({3, 7})};
    batch.fields["targets"] = {(at::arange(21) * 7).remainder(23).view({3, 7})};
  }

  double loss(const at::Tensor& flat, const base::Random& random, mesh::Gradients* into) {
    const model::FlatWeights weights(layout, flat);
    const mesh::Axes alone;
    const model::PassOptions options{.draws_by_token = true};
    return execute({.model = *model,
                    .at = weights,
                    .buffers = buffers,
                    .axes = alone,
                    .batch = batch,
                    .objective = *objective,
                    .into = into,
                    .weight = 1,
                    .random = random,
                    .options = options})
        .sum.item<double>();
  }
};

void expect_gradients_of_the_masked_function(Dropped one) {
  const at::Tensor flat = at::empty({one.layout.elements}, at::kDouble), direction = at::empty_like(flat);
  model::initialize_parameters(*one.model, flat, base::Random(3));
  flat.mul_(10);
  for (const mesh::NamedTensor& named : one.layout.views(flat))
    if (named.name.ends_with(".lora_B.weight") || named.name.ends_with(".pool_b") || named.name.find(".up.") != std::string::npos ||
        named.name.find(".lora_B.modules.") != std::string::npos)
      kernels::fill_normal(named.tensor.view({-1}), base::Random(5).for_name(named.name), 0, 0.03);
  kernels::fill_normal(direction, base::Random(9), 0, 1);
  mesh::FlatGradients sink(one.layout, at::empty_like(flat), one.model->uses());
  const auto trained = [&](const at::Tensor& at) {
    sink.begin(1, nullptr);
    const double loss = one.loss(at, base::Random(4), &sink);
    sink.finish();
    return loss;
  };
  constexpr double kStep = 1e-7;
  const double slope = (trained(flat + kStep * direction) - trained(flat - kStep * direction)) / (2 * kStep);
  trained(flat);
  EXPECT_NEAR((sink.flat() * direction).sum().item<double>(), slope, 1e-5 * std::abs(slope));
  const double first = trained(flat);
  sink.begin(1, nullptr);
  EXPECT_NE(one.loss(flat, base::Random(5), &sink), first);                                       // another step, another mask
  EXPECT_EQ(one.loss(flat, base::Random(4), nullptr), one.loss(flat, base::Random(5), nullptr));  // none without gradients
}

TEST(Dropout, HasTheGradientsOfTheFunctionWithItsMask) {
  expect_gradients_of_the_masked_function(Dropped());
  const std::vector<std::string> targets{"q_proj", "o_proj", "up_proj", "down_proj"};
  expect_gradients_of_the_masked_function(Dropped({.rank = 2, .targets = targets, .dropout = 0.4}));
  expect_gradients_of_the_masked_function(Dropped({.rank = 3,
                                                   .targets = targets,
                                                   .dropout = 0.4,
                                                   .kind = model::AdapterKind::mos,
                                                   .equivalent_rank = 2,
                                                   .private_rank = 1,
                                                   .shards = 2}));
}

// A training pass computes with the modules that it draws, and others have no gradient in it.
TEST(Dropout, AndModulesHaveTheGradientsOfTheFunctionThatTheyMake) {
  const auto in_modules = [](model::AdapterStyle style, model::AdapterShare share, model::ModuleSplit split) {
    model::AdapterShape shape{.rank = 5, .targets = {"q_proj", "o_proj"}, .dropout = 0.3, .kind = model::AdapterKind::mosa};
    shape.style = style, shape.modules = 3, shape.share = share, shape.split = split;
    return shape;
  };
  using enum model::AdapterStyle;
  expect_gradients_of_the_masked_function(Dropped(in_modules(adaptformer, model::AdapterShare::down, model::ModuleSplit::all)));
  expect_gradients_of_the_masked_function(Dropped(in_modules(houlsby, model::AdapterShare::none, model::ModuleSplit::row)));
  expect_gradients_of_the_masked_function(Dropped(in_modules(houlsby, model::AdapterShare::up, model::ModuleSplit::all)));
  expect_gradients_of_the_masked_function(Dropped(in_modules(lora, model::AdapterShare::down, model::ModuleSplit::column)));
  expect_gradients_of_the_masked_function(Dropped(in_modules(lora, model::AdapterShare::none, model::ModuleSplit::all)));
}

TEST(Dropout, ABlockOfColumnsHasTheMaskOfTheWholeRow) {
  const at::Tensor whole = at::ones({9, 40}), part = at::ones({9, 13}), keys = at::arange(9);
  kernels::dropout(whole, keys, base::Random(1), 0.5);
  kernels::dropout(part, keys, base::Random(1), 0.5, 11);
  EXPECT_TRUE(at::equal(part, whole.narrow(1, 11, 13)));
}

TEST(Dropout, DropsTheGivenFractionAndKeepsTheMean) {
  const at::Tensor x = at::ones({400, 50}), keys = at::arange(400);
  kernels::dropout(x, keys, base::Random(1), 0.2);
  EXPECT_NEAR(x.eq(0).to(at::kDouble).mean().item<double>(), 0.2, 0.01);
  EXPECT_NEAR(x.mean().item<double>(), 1, 0.02);
  const at::Tensor one = at::ones({1, 50});
  kernels::dropout(one, keys.narrow(0, 17, 1), base::Random(1), 0.2);
  EXPECT_TRUE(at::equal(one[0], x[17]));  // a row's mask is its key's
}

}  // namespace
}  // namespace cairn::parallel
