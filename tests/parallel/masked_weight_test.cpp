// Weights under masks: their gradients are those of the plain form, and pruned places have none.
#include "model/decoder/masked_weight.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/fill_normal.h"
#include "mesh/flat_gradients.h"
#include "mesh/trainable_gradients.h"
#include "model/bit_mask.h"
#include "model/decoder/decoder.h"
#include "model/formed_weights.h"
#include "model/model.h"
#include "model/objective.h"
#include "parallel/by_autograd.h"
#include "parallel/pass.h"
#include "parallel/token_batch.h"

namespace cairn::model {
namespace {

TEST(BitMask, KeepsEveryBitOfAnyWidth) {
  for (const int64_t columns : {1, 7, 8, 9, 16, 23}) {
    const at::Tensor kept = at::rand({5, columns}).lt(0.5), bits = pack_mask(kept);
    EXPECT_EQ(bits.sizes().vec(), mask_shape({5, columns}));
    EXPECT_TRUE(at::equal(unpack_mask(bits, columns), kept)) << columns;
    EXPECT_TRUE(at::equal(full_mask({5, columns}, at::TensorOptions()), pack_mask(at::ones({5, columns}, at::kBool))));
  }
}

DecoderShape masked_llama() {
  return {.vocab = 23, .embed = 12, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 4, .mlp = 10, .length = 9, .tied = false};
}
DecoderShape masked_gpt2() {
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

// All weights of the blocks but one of three neighbours, so that plain ones stand beside others.
std::vector<std::string> most_weights(const DecoderShape& shape) {
  std::vector<std::string> names;
  const auto plain = make_decoder(shape);
  for (const Parameter& one : plain->parameters())
    if (one.is_hidden_matrix() && one.name.find("k_proj") == std::string::npos) names.push_back(one.name);
  return names;
}

struct MaskedCase {
  DecoderShape shape;
  SparseForm form;
};

struct MaskedModel {
  explicit MaskedModel(const MaskedCase& of)
      : model(make_decoder(of.shape, {}, make_sparse_rule({.form = of.form, .rank = 3, .alpha = 6, .weights = most_weights(of.shape)}))),
        layout(model->layout()),
        flat(at::empty({layout.elements}, at::kDouble)),
        buffers(model->make_buffers(at::kDouble)),
        batch(parallel::token_batch(3, of.shape.length, of.shape.vocab)) {
    initialize_parameters(*model, flat, base::Random(3));
    for (const mesh::NamedTensor& one : layout.views(flat)) {
      if (one.name.ends_with(".bias") || one.name.find("_lora_B") != std::string::npos)
        kernels::fill_normal(one.tensor.view({-1}), base::Random(4).for_name(one.name), 0, 0.05);
      if (one.name.find("scale_lora") != std::string::npos) one.tensor.add_(at::randn(one.tensor.sizes(), at::kDouble) * 0.3);
    }
    for (const WeightForm* form : weight_forms(*model)) {
      const auto found = buffers.find(form->dense_parameter().name + kMaskSuffix);
      if (found == buffers.end()) continue;
      found->second = pack_mask(at::rand(form->dense_parameter().shape).lt(0.5));
    }
  }

  at::Tensor view(const std::string& name) const {
    for (const mesh::NamedTensor& one : layout.views(flat))
      if (one.name == name) return one.tensor;
    return {};
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

  std::unique_ptr<Model> model;
  mesh::FlatLayout layout;
  at::Tensor flat;
  Buffers buffers;
  mesh::Batch batch;
};

class MaskedGradients : public testing::TestWithParam<MaskedCase> {};

TEST_P(MaskedGradients, EqualThoseOfThePlainFormInDouble) {
  MaskedModel one(GetParam());
  one.flat.mul_(3);
  const auto expected = gradients_by_autograd(*one.model, one.layout, one.flat, one.buffers, one.batch, "targets", 0.1);
  mesh::FlatGradients sink(one.layout, at::full_like(one.flat, 99.0), one.model->uses());
  sink.begin(1, nullptr);
  one.loss(&sink);
  sink.finish();
  double largest = 0;
  for (const at::Tensor& gradient : expected) largest = std::max(largest, gradient.norm().item<double>());
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor found = one.layout.view(sink.flat(), {static_cast<int32_t>(i)});
    EXPECT_LT((found - expected[i]).norm().item<double>(), 1e-10 * largest) << one.layout.pieces[i].name;
  }
}

TEST_P(MaskedGradients, AreExactlyZeroWhereWeightsArePruned) {
  MaskedModel one(GetParam());
  mesh::FlatGradients sink(one.layout, at::full_like(one.flat, 99.0), one.model->uses());
  sink.begin(1, nullptr);
  const double loss = one.loss(&sink);
  sink.finish();
  for (size_t i = 0; i < one.layout.pieces.size(); ++i) {
    const auto bits = one.buffers.find(one.layout.pieces[i].name + kMaskSuffix);
    if (bits == one.buffers.end()) continue;
    const at::Tensor gone = unpack_mask(bits->second, one.layout.pieces[i].shape[1]).logical_not();
    EXPECT_EQ(one.layout.view(sink.flat(), {static_cast<int32_t>(i)}).masked_select(gone).abs().sum().item<double>(), 0);
    one.layout.view(one.flat, {static_cast<int32_t>(i)}).masked_fill_(gone, 1e9);  // whatever lies there
  }
  EXPECT_EQ(one.loss(nullptr), loss);
}

TEST_P(MaskedGradients, AreNotComputedForFrozenWeights) {
  MaskedModel one(GetParam());
  std::vector<bool> chosen(one.layout.pieces.size(), false);
  chosen[1] = true;
  const mesh::FlatLayout trained = mesh::trainable_layout(one.layout, chosen);
  mesh::FlatGradients sink(trained, at::zeros({trained.elements}, at::kDouble), {1});
  const auto filtered = mesh::make_trainable_gradients(one.layout, chosen, sink);
  EXPECT_TRUE(filtered->wants({0, 2}));
  EXPECT_FALSE(filtered->wants({2, 1}));
  sink.begin(1, nullptr);
  one.loss(filtered.get());
  sink.finish();
  EXPECT_GT(sink.flat().abs().sum().item<double>(), 0);
}

// What exports write is what the layers multiply by, under the names of an ordinary model.
TEST_P(MaskedGradients, TheDenseTensorsComputeTheSameWithoutForms) {
  MaskedModel one(GetParam());
  const mesh::NamedTensors dense = dense_tensors(*one.model, one.layout.views(one.flat), one.buffers);
  const auto plain = make_decoder(GetParam().shape);
  const mesh::FlatLayout layout = plain->layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kDouble);
  const mesh::NamedTensors views = layout.views(flat);
  ASSERT_EQ(views.size(), dense.size());
  for (size_t i = 0; i < views.size(); ++i) {
    EXPECT_EQ(views[i].name, dense[i].name);
    views[i].tensor.copy_(dense[i].tensor);
  }
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
  EXPECT_NEAR(loss, one.loss(nullptr), 1e-12 * loss);
}

INSTANTIATE_TEST_SUITE_P(Forms, MaskedGradients,
                         testing::Values(MaskedCase{masked_llama(), SparseForm::masked}, MaskedCase{masked_llama(), SparseForm::mask_lora},
                                         MaskedCase{masked_llama(), SparseForm::scale_lora}, MaskedCase{masked_gpt2(), SparseForm::masked},
                                         MaskedCase{masked_gpt2(), SparseForm::mask_lora},
                                         MaskedCase{masked_gpt2(), SparseForm::scale_lora}));

// New factors change nothing.
TEST(MaskedWeight, StartsAsThePrunedWeight) {
  const DecoderShape shape = masked_llama();
  for (const SparseForm form : {SparseForm::mask_lora, SparseForm::scale_lora}) {
    const auto model = make_decoder(shape, {}, make_sparse_rule({.form = form, .rank = 5, .weights = most_weights(shape)}));
    const mesh::FlatLayout layout = model->layout();
    const at::Tensor flat = at::empty({layout.elements});
    initialize_parameters(*model, flat, base::Random(3));
    Buffers buffers = model->make_buffers(at::kFloat);
    const FlatWeights weights(layout, flat);
    const mesh::Axes alone;
    const Call call{.weights = weights, .buffers = buffers, .axes = alone};
    for (const WeightForm* one : weight_forms(*model)) {
      const at::Tensor stored = weights.get(one->parameters().front()), dense = one->dense(call);
      EXPECT_LE((dense - stored).abs().max().item<double>(), 1e-6 * stored.abs().max().item<double>()) << one->name();
    }
  }
}

TEST(MaskedWeight, TrainsItsFactorsByDefault) {
  const DecoderShape shape = masked_llama();
  const auto model = make_decoder(shape, {}, make_sparse_rule({.form = SparseForm::mask_lora, .rank = 3, .weights = most_weights(shape)}));
  int64_t adapters = 0;
  for (const Parameter& one : model->parameters()) adapters += one.role == Parameter::Role::adapter ? one.elements() : 0;
  int64_t expected = 0;
  const auto decoder = make_decoder(shape);
  for (const Parameter& one : decoder->parameters())
    if (one.is_hidden_matrix() && one.name.find("k_proj") == std::string::npos) expected += 3 * (one.shape[0] + one.shape[1]);
  EXPECT_EQ(adapters, expected);
}

}  // namespace
}  // namespace cairn::model
