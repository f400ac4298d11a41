// A whole Llama through a pass: hand-written gradients against autograd of the plain form.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/memory_tags.h"
#include "base/random.h"
#include "mesh/flat_gradients.h"
#include "model/llama.h"
#include "model/objective.h"
#include "parallel/by_autograd.h"
#include "parallel/pass.h"

namespace cairn::model {
namespace {

mesh::Batch tokens_and_targets(int64_t samples, int64_t length, int64_t vocab) {
  mesh::Batch batch;
  const base::Random random(7);
  at::Tensor tokens = at::empty({samples, length}, at::kLong), targets = at::empty({samples, length}, at::kLong);
  for (int64_t i = 0; i < samples * length; ++i) {
    tokens.data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(static_cast<uint64_t>(2 * i), static_cast<uint64_t>(vocab)));
    targets.data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(static_cast<uint64_t>(2 * i + 1), static_cast<uint64_t>(vocab)));
  }
  targets[0][0] = -100;
  batch.ids = at::arange(samples);
  batch.fields["tokens"] = {tokens};
  batch.fields["targets"] = {targets};
  return batch;
}

struct Case {
  LlamaShape shape;
  int64_t samples, length;
};

class LlamaGradients : public testing::TestWithParam<Case> {};

// Forward and both gradients of every block, in double, against autograd of the plain form: rounding is all that may differ.
TEST_P(LlamaGradients, EqualThoseOfThePlainFormInDouble) {
  const auto& [shape, samples, length] = GetParam();
  const auto model = make_llama(shape);
  const mesh::FlatLayout layout = model->layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kDouble);
  materialise(*model, flat, base::Random(3));
  flat.mul_(10);  // away from the linear regime, where wrong derivatives hide
  Buffers buffers = model->make_buffers(at::TensorOptions().dtype(at::kDouble));
  const mesh::Batch batch = tokens_and_targets(samples, length, shape.vocab);
  const double weight = 1.0 / 17;
  const auto expected = gradients_by_autograd(*model, layout, flat, buffers, batch, "targets", weight);

  mesh::FlatGradients sink(layout, at::full({layout.elements}, 99.0, at::kDouble), model->uses());
  std::vector<int64_t> announced;
  sink.begin(1, [&](int64_t index) { announced.push_back(index); });
  const FlatWeights weights(layout, flat);
  const mesh::Axes alone;
  const auto objective = make_next_token();
  parallel::execute({.model = *model,
                     .at = weights,
                     .buffers = buffers,
                     .axes = alone,
                     .batch = batch,
                     .objective = *objective,
                     .into = &sink,
                     .weight = weight});
  sink.finish();
  EXPECT_EQ(announced.size(), layout.pieces.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor found = layout.view(sink.flat(), {static_cast<int32_t>(i)});
    // A query that sees one key only has no gradient: what is left there is rounding, and differs between processors.
    const double size = expected[i].norm().item<double>();
    const double error = (found - expected[i]).norm().item<double>() / (size > 1e-12 ? size : 1e-2);
    EXPECT_LT(error, 1e-11) << layout.pieces[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, LlamaGradients,
    testing::Values(
        Case{{.vocab = 23, .embed = 16, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 4, .mlp = 20, .length = 9, .tied = true}, 3, 9},
        Case{
            {.vocab = 11, .embed = 10, .layers = 1, .heads = 1, .kv_heads = 1, .head_dim = 10, .mlp = 7, .length = 5, .tied = false}, 1, 5},
        Case{{.vocab = 31, .embed = 12, .layers = 3, .heads = 6, .kv_heads = 1, .head_dim = 2, .mlp = 13, .length = 4, .tied = true}, 2, 1},
        Case{{.vocab = 7, .embed = 8, .layers = 1, .heads = 2, .kv_heads = 2, .head_dim = 8, .mlp = 16, .length = 17, .tied = false},
             2,
             17}));

TEST(Llama, BooksWhatItKeepsForBackwardAsItsCardsSay) {
  const LlamaShape shape{
      .vocab = 50, .embed = 16, .layers = 3, .heads = 2, .kv_heads = 1, .head_dim = 8, .mlp = 24, .length = 8, .tied = true};
  const auto model = make_llama(shape);
  const FlatWeights weights(model->layout(), at::zeros({model->elements()}));
  Buffers buffers = model->make_buffers(at::kFloat);
  const mesh::Batch batch = tokens_and_targets(2, 8, 50);
  mesh::FlatGradients sink(model->layout(), at::empty({model->elements()}), model->uses());
  sink.begin(1, nullptr);
  base::MemoryTags memory;
  const mesh::Axes alone;
  const auto objective = make_next_token();
  parallel::execute({.model = *model,
                     .at = weights,
                     .buffers = buffers,
                     .axes = alone,
                     .batch = batch,
                     .objective = *objective,
                     .into = &sink,
                     .memory = &memory});
  double expected = 0;  // elements a token, without the logits, which the objective turns into their gradient
  for (const auto& block : model->blocks())
    for (const Operation& operation : block->card().operations)
      if (operation.name != "logits") expected += operation.saved_elements_per_token;
  const auto booked = memory.of(base::MemoryUse::activations);
  EXPECT_EQ(booked.now, 0);
  EXPECT_NEAR(static_cast<double>(booked.peak), expected * 16 * 4, 0.05 * expected * 16 * 4);
}

TEST(Llama, GivesTheSameLossInFloatAsThePlainForm) {
  const LlamaShape shape{
      .vocab = 101, .embed = 64, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .mlp = 96, .length = 33, .tied = true};
  const auto model = make_llama(shape);
  const at::Tensor flat = at::empty({model->elements()});
  materialise(*model, flat, base::Random(5));
  Buffers buffers = model->make_buffers(at::kFloat);
  const mesh::Batch batch = tokens_and_targets(3, 33, 101);
  const FlatWeights weights(model->layout(), flat);
  const mesh::Axes alone;
  const auto objective = make_next_token();
  const Losses losses =
      parallel::execute({.model = *model, .at = weights, .buffers = buffers, .axes = alone, .batch = batch, .objective = *objective});
  Values values;
  for (const auto& [name, field] : batch.fields) values.put(name, field.tensor);
  const Call call{.weights = weights, .buffers = buffers, .axes = alone};
  at::NoGradGuard no_grad;
  for (const auto& block : model->blocks()) block->plain(values, call);
  const at::Tensor plain =
      at::cross_entropy_loss(values.get("logits").reshape({-1, 101}), batch.field("targets").reshape({-1}), {}, at::Reduction::Sum, -100);
  EXPECT_NEAR(losses.sum.item<double>(), plain.item<double>(), 1e-5 * plain.item<double>());
  EXPECT_EQ(losses.count.item<int64_t>(), 3 * 33 - 1);
  EXPECT_EQ(losses.per_sample.size(0), 3);
}

}  // namespace
}  // namespace cairn::model
