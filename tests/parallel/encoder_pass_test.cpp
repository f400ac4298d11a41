// A whole encoder through a pass: hand-written gradients against autograd of the plain form.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/losses/retrieval.h"
#include "parallel/by_autograd.h"
#include "parallel/pass.h"

namespace cairn::model {
namespace {

constexpr int64_t kSamples = 4, kLength = 12;

// Rows of three texts of 2, 4 and 5 tokens and one of padding, pooled by last token, mean and first token.
mesh::Batch three_texts(int64_t vocab) {
  mesh::Batch batch;
  batch.ids = at::arange(kSamples, at::kLong);
  const at::Tensor documents = at::empty({kSamples, kLength}, at::kLong), positions = at::zeros_like(documents);
  const at::Tensor pool = at::zeros({kSamples, 3, kLength});
  const std::vector<int64_t> begins{0, 2, 6, 11, 12};
  for (int64_t i = 0; i < kSamples; ++i)
    for (int64_t text = 0; text < 4; ++text)
      for (int64_t t = begins[static_cast<size_t>(text)]; t < begins[static_cast<size_t>(text) + 1]; ++t) {
        documents[i][t] = text;
        positions[i][t] = t - begins[static_cast<size_t>(text)];
        if (text == 1) pool[i][1][t] = 0.25;
      }
  pool.select(1, 0).select(1, 1).fill_(1);
  pool.select(1, 2).select(1, 6).fill_(1);
  batch.fields = {{"tokens", {(at::arange(kSamples * kLength, at::kLong) * 7 % vocab).view({kSamples, kLength})}},
                  {"documents", {documents}},
                  {"positions", {positions}},
                  {"pool", {pool}},
                  {"pair_scores", {at::linspace(-1, 1, 2 * kSamples, at::kDouble).view({kSamples, 2})}}};
  return batch;
}

class EncoderGradients : public testing::TestWithParam<std::string> {};

TEST_P(EncoderGradients, EqualThoseOfThePlainFormInDouble) {
  DecoderShape shape{
      .vocab = 23, .embed = 16, .layers = 2, .heads = 2, .kv_heads = 2, .head_dim = 8, .mlp = 24, .length = 8, .family = GetParam()};
  if (GetParam() == "gpt2") shape.qkv_bias = shape.out_bias = shape.mlp_bias = true;
  if (GetParam() == "ladder") shape.family = "llama", shape.residual = "ladder", shape.ladder_layers = {0, 1};
  const auto model = make_encoder(shape);
  const mesh::FlatLayout layout = model->layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kDouble);
  initialize_parameters(*model, flat, base::Random(3));
  flat.mul_(8);
  const mesh::Batch batch = three_texts(shape.vocab);
  const auto objective = make_retrieval({.in_batch_weight = 0.5, .in_batch_loss = PassageLoss::labels});
  const double weight = 0.2;

  mesh::FlatGradients sink(layout, at::full_like(flat, 99.0), model->uses());
  sink.begin(1, nullptr);
  const FlatWeights weights(layout, flat);
  Buffers buffers = model->make_buffers(flat.options());
  const mesh::Axes alone;
  const Losses losses = parallel::execute({.model = *model,
                                           .at = weights,
                                           .buffers = buffers,
                                           .axes = alone,
                                           .batch = batch,
                                           .objective = *objective,
                                           .into = &sink,
                                           .weight = weight});
  sink.finish();

  at::AutoGradMode record(true);
  const LeafWeights leaves(layout, flat);
  const Call call{.weights = leaves, .buffers = buffers, .axes = alone};
  Values values;
  for (const auto& [name, field] : batch.fields) values.put(name, field.tensor);
  for (const auto& block : model->blocks()) block->plain(values, call);
  const at::Tensor v = values.get("vectors"), q = v.select(1, 0), p = v.select(1, 1), n = v.select(1, 2);
  const at::Tensor scores = batch.field("pair_scores");
  const at::Tensor apart = (q * p).sum(1) - (q * n).sum(1) - (scores.select(1, 0) - scores.select(1, 1));
  const at::Tensor log_p = at::log_softmax(at::cat(std::vector<at::Tensor>{q.mm(p.t()), q.mm(n.t())}, 1), 1);
  const at::Tensor loss = (apart * apart).sum() - 0.5 * log_p.diagonal().sum();
  EXPECT_NEAR(losses.sum.item<double>(), loss.item<double>(), 1e-9 * loss.item<double>());
  const std::vector<at::Tensor> expected = torch::autograd::grad({loss * weight}, leaves.leaves);
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor found = layout.view(sink.flat(), {static_cast<int32_t>(i)});
    EXPECT_LT((found - expected[i]).abs().max().item<double>(), 1e-9 * (1e-3 + expected[i].abs().max().item<double>()))
        << model->parameters()[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, EncoderGradients, testing::Values("llama", "gpt2", "gla", "ladder"), [](const auto& c) { return c.param; });

}  // namespace
}  // namespace cairn::model
