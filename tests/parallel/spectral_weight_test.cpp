// Weights as U diag(s) V^T: both paths against the plain form, enhanced gradients against true ones, dense weights back and forth.
#include "model/decoder/spectral_weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/formed_weights.h"
#include "model/model.h"
#include "model/objective.h"
#include "model/trainable.h"
#include "parallel/by_autograd.h"
#include "parallel/pass.h"
#include "parallel/token_batch.h"

namespace cairn::model {
namespace {

DecoderShape spectral_llama() {
  return {.vocab = 23, .embed = 12, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 4, .mlp = 10, .length = 9, .tied = false};
}
DecoderShape spectral_gpt2() {
  return {.vocab = 19,
          .embed = 8,
          .layers = 2,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 4,
          .mlp = 12,
          .length = 7,
          .tied = true,
          .family = "gpt2",
          .qkv_bias = true,
          .out_bias = true,
          .mlp_bias = true};
}

struct SpectralCase {
  DecoderShape shape;
  SpectralOptions options;
};

// A decoder whose spectral layers start from the weights of a plain one, times `scale`.
struct SpectralModel {
  explicit SpectralModel(const SpectralCase& of, double scale = 1)
      : shape(of.shape),
        model(make_decoder(of.shape, {}, make_spectral_rule(of.options))),
        layout(model->layout()),
        flat(at::empty({layout.elements}, at::kDouble)),
        buffers(model->make_buffers(at::kDouble)),
        batch(parallel::token_batch(3, of.shape.length, of.shape.vocab)) {
    initialize_parameters(*model, flat, base::Random(3));
    for (const WeightForm* form : weight_forms(*model)) {
      const Parameter& dense = form->dense_parameter();
      const at::Tensor start = at::empty(dense.shape, at::kFloat);
      initialize_parameter(dense, start.view({-1}), base::Random(3));
      form->start(start.mul_(scale), [&](mesh::ParamId id) { return layout.view(flat, id); });
    }
  }

  double loss(mesh::Gradients* into) {
    const FlatWeights weights(layout, flat);
    const mesh::Axes alone;
    return parallel::execute({.model = *model,
                              .at = weights,
                              .buffers = buffers,
                              .axes = alone,
                              .batch = batch,
                              .objective = *make_next_token(),
                              .into = into,
                              .weight = 0.1})
        .sum.item<double>();
  }

  // By parameter.
  std::vector<at::Tensor> gradients() {
    mesh::FlatGradients sink(layout, at::full_like(flat, 99.0), model->uses());
    sink.begin(1, nullptr);
    loss(&sink);
    sink.finish();
    std::vector<at::Tensor> all;
    for (size_t i = 0; i < layout.pieces.size(); ++i) all.push_back(layout.view(sink.flat(), {static_cast<int32_t>(i)}));
    return all;
  }

  DecoderShape shape;
  std::unique_ptr<Model> model;
  mesh::FlatLayout layout;
  at::Tensor flat;
  Buffers buffers;
  mesh::Batch batch;
};

class SpectralGradients : public testing::TestWithParam<SpectralCase> {};

// Without the enhancement they are derivatives. Frozen vectors have none here, though the function depends on them.
TEST_P(SpectralGradients, EqualThoseOfThePlainFormInDouble) {
  SpectralCase c = GetParam();
  c.options.enhanced = false;
  SpectralModel one(c, 3);
  const auto expected = gradients_by_autograd(*one.model, one.layout, one.flat, one.buffers, one.batch, "targets", 0.1);
  const std::vector<at::Tensor> found = one.gradients();
  double largest = 0;
  for (const at::Tensor& gradient : expected) largest = std::max(largest, gradient.norm().item<double>());
  for (size_t i = 0; i < expected.size(); ++i) {
    if (one.layout.pieces[i].name.ends_with("_frozen")) continue;
    EXPECT_LT((found[i] - expected[i]).norm().item<double>(), 1e-10 * largest) << one.layout.pieces[i].name;
  }
}

TEST_P(SpectralGradients, EnhancedOnesLackTheSingularValue) {
  SpectralCase c = GetParam();
  SpectralModel enhanced(c, 3);
  c.options.enhanced = false;
  SpectralModel derivative(c, 3);
  const std::vector<at::Tensor> lacking = enhanced.gradients(), whole = derivative.gradients();
  for (const SpectralLayer& layer : spectral_layers(*enhanced.model)) {
    const at::Tensor s = enhanced.layout.view(enhanced.flat, {layer.s}).narrow(0, 0, layer.rank).unsqueeze(1);
    for (const int32_t i : {layer.u, layer.v}) {
      const auto at = static_cast<size_t>(i);
      EXPECT_LT((lacking[at] * s - whole[at]).norm().item<double>(), 1e-10 * whole[at].norm().item<double>());
      EXPECT_GT(lacking[at].norm().item<double>(), 0);
    }
  }
}

TEST_P(SpectralGradients, TheDenseTensorsComputeTheSameWithoutForms) {
  SpectralModel one(GetParam());
  const mesh::NamedTensors dense = dense_tensors(*one.model, one.layout.views(one.flat), one.buffers);
  const auto plain = make_decoder(one.shape);
  const mesh::FlatLayout layout = plain->layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kDouble), start = at::empty_like(flat);
  initialize_parameters(*plain, start, base::Random(3));
  const mesh::NamedTensors views = layout.views(flat);
  ASSERT_EQ(views.size(), dense.size());
  for (const mesh::NamedTensor& view : views)
    for (const mesh::NamedTensor& one_dense : dense)
      if (one_dense.name == view.name) view.tensor.copy_(one_dense.tensor);
  EXPECT_LT((flat - start).abs().max().item<double>(), 1e-7) << "a decomposition changed the weights";
  const FlatWeights weights(layout, flat);
  Buffers buffers = plain->make_buffers(at::kDouble);
  const mesh::Axes alone;
  const double loss = parallel::execute({.model = *plain,
                                         .at = weights,
                                         .buffers = buffers,
                                         .axes = alone,
                                         .batch = one.batch,
                                         .objective = *make_next_token(),
                                         .weight = 0.1})
                          .sum.item<double>();
  EXPECT_NEAR(loss, one.loss(nullptr), 1e-11 * loss);
}

INSTANTIATE_TEST_SUITE_P(Paths, SpectralGradients,
                         testing::Values(SpectralCase{spectral_llama(), {.rank = 3, .path = SpectralPath::factored}},
                                         SpectralCase{spectral_llama(), {.rank = 3, .path = SpectralPath::dense}},
                                         SpectralCase{spectral_llama(), {.rank = 8, .path = SpectralPath::automatic}},
                                         SpectralCase{spectral_gpt2(), {.rank = 8, .path = SpectralPath::factored}},
                                         SpectralCase{spectral_gpt2(), {.rank = 2, .path = SpectralPath::factored}},
                                         SpectralCase{spectral_gpt2(), {.rank = 2, .path = SpectralPath::dense}}));

TEST(SpectralWeight, DecomposesIntoSortedOrthonormalVectors) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{7, 13}, {13, 7}, {9, 9}, {1, 5}}) {
    const at::Tensor w = at::randn({rows, columns});
    const SpectralFactors f = decompose(w);
    EXPECT_LT((spectral_product(f) - w).abs().max().item<double>(), 1e-5);
    for (const at::Tensor& vectors : {f.u, f.v}) {
      const at::Tensor gram = at::mm(vectors, vectors.t());
      EXPECT_LT((gram - gram.diagonal().diag()).abs().max().item<double>(), 1e-6);
      EXPECT_LT((gram.diagonal() - 1).abs().max().item<double>(), 1e-6);
    }
    EXPECT_TRUE((f.s.narrow(0, 0, f.s.numel() - 1) - f.s.narrow(0, 1, f.s.numel() - 1)).ge(0).all().item<bool>());
    EXPECT_TRUE(at::equal(decompose(w.clone()).u, f.u));
  }
  at::Tensor broken = at::randn({4, 4});
  broken[1][2].fill_(std::numeric_limits<float>::infinity());
  EXPECT_FALSE(decompose(broken).s.defined());
}

TEST(SpectralWeight, AZeroColumnIsNoTrouble) {
  at::Tensor w = at::randn({6, 5});
  w.select(1, 0).zero_();
  EXPECT_LT((spectral_product(decompose(w)) - w).abs().max().item<double>(), 1e-5);
  EXPECT_LT(spectral_product(decompose(at::zeros({3, 4}))).abs().max().item<double>(), 1e-12);
}

// Values that training brought to zero come back as rounding; ranks that round otherwise must go on with the same vectors.
TEST(SpectralWeight, CloseMatricesOfLowRankHaveCloseDecompositions) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{7, 13}, {13, 7}, {9, 9}}) {
    const at::Tensor w = at::mm(at::randn({rows, 4}), at::randn({4, columns}));
    const SpectralFactors one = decompose(w), other = decompose(w + at::randn({rows, columns}).mul_(1e-7));
    EXPECT_LT((one.u - other.u).abs().max().item<double>(), 1e-4);
    EXPECT_LT((one.v - other.v).abs().max().item<double>(), 1e-4);
    EXPECT_LT((at::mm(one.v, one.v.t()) - at::mm(other.v, other.v.t())).abs().max().item<double>(), 1e-6);
    EXPECT_LT((at::mm(one.u, one.u.t()).diagonal() - 1).abs().max().item<double>(), 1e-6);
    EXPECT_EQ(one.s.narrow(0, 4, one.s.numel() - 4).abs().max().item<float>(), 0);
    EXPECT_LT((spectral_product(one) - w).abs().max().item<double>(), 1e-5);
  }
}

TEST(SpectralWeight, TrainsAFewVectorsAndAllValues) {
  const auto model = make_decoder(spectral_llama(), {}, make_spectral_rule({.rank = 3}));
  const std::vector<bool> trained = trainable(*model, {});
  int64_t expected = 0, found = 0;
  for (const SpectralLayer& one : spectral_layers(*model)) expected += one.values + 3 * (one.in + one.out);
  for (size_t i = 0; i < trained.size(); ++i) {
    const Parameter& one = model->parameters()[i];
    if (one.name.find(".spectral_") == std::string::npos) {
      EXPECT_TRUE(trained[i]) << one.name;
      continue;
    }
    EXPECT_EQ(trained[i], !one.name.ends_with("_frozen")) << one.name;
    EXPECT_EQ(one.decays(), one.name.ends_with("spectral_s")) << one.name;
    if (trained[i]) found += one.elements();
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(spectral_layers(*model).size(), 14u);
}

TEST(SpectralWeight, RefusesMorePairsThanALayerHas) {
  try {
    make_decoder(spectral_llama(), {}, make_spectral_rule({.rank = 9}));
    FAIL() << "k_proj has 8 singular values";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("model.spectral.rank = 9: model.layers.0.self_attn.k_proj.weight has 8 singular values"));
  }
}

}  // namespace
}  // namespace cairn::model
