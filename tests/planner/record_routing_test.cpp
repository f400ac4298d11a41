// Routing traces of a model against routers computed by hand.
#include "planner/experts/record_routing.h"

#include <ATen/core/IListRef.h>
#include <gtest/gtest.h>

#include "base/error_of.h"
#include "kernels/aten.h"
#include "mesh/axes.h"
#include "model/decoder/decoder.h"

namespace cairn::planner {
namespace {

model::DecoderShape traced_shape() {
  model::DecoderShape shape{.vocab = 19, .embed = 12, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 6, .mlp = 9, .length = 8};
  shape.family = "mixtral";
  shape.experts = {.count = 5, .top_k = 2, .width = 9};
  return shape;
}

// The first expert of each token of a sequence in each layer: RMS norm and router in double, on the stream before the layer's experts.
std::vector<std::vector<int64_t>> choices_by_hand(const model::Model& model, const model::FlatWeights& weights, model::Buffers& buffers,
                                                  const at::Tensor& tokens) {
  const mesh::Axes alone;
  const model::Call call{.weights = weights, .buffers = buffers, .axes = alone};
  model::Values values;
  values.put("tokens", tokens);
  std::vector<std::vector<int64_t>> layers;
  for (const auto& block : model.blocks()) {
    const std::string& name = block->card().name;
    if (name.ends_with(".mlp")) {
      std::map<std::string, at::Tensor> of_block;
      for (const model::BlockOp& operation : block->card().operations)
        if (!operation.parameters.empty()) of_block[operation.name] = weights.get(operation.parameters.front()).to(at::kDouble);
      const at::Tensor x = values.get(block->card().reads.front())[0].to(at::kDouble);
      const at::Tensor normed = x / (x.square().mean(1, true) + traced_shape().norm_eps).sqrt() * of_block.at("norm");
      const at::Tensor scores = at::matmul(normed, of_block.at("router").t());
      std::vector<int64_t> first;
      for (int64_t t = 0; t < scores.size(0); ++t) first.push_back(scores[t].argmax().item<int64_t>());
      layers.push_back(first);
    }
    block->plain(values, call);
  }
  return layers;
}

TEST(RecordRouting, FindsTheFirstExpertOfEachTokenInSequencesOfTheGivenLength) {
  const auto model = model::make_decoder(traced_shape());
  const model::FlatWeights weights(model->layout(), at::randn({model->elements()}));
  model::Buffers buffers = model->make_buffers(at::kFloat);
  const std::vector<int64_t> tokens{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 18};
  const RoutingTrace trace = record_routing({*model, weights, buffers}, tokens, 4);
  EXPECT_EQ(trace.layers, 2);
  ASSERT_EQ(trace.tokens(), 11);
  for (int64_t begin = 0; begin < 11; begin += 4) {
    const int64_t n = std::min<int64_t>(4, 11 - begin);
    const std::vector<int64_t> part(tokens.begin() + begin, tokens.begin() + begin + n);
    const auto expected = choices_by_hand(*model, weights, buffers, at::tensor(part, at::kLong).view({1, n}));
    ASSERT_EQ(expected.size(), 2u);
    for (int64_t t = 0; t < n; ++t)
      for (int layer = 0; layer < 2; ++layer)
        EXPECT_EQ(trace.at(begin + t, layer), expected[static_cast<size_t>(layer)][static_cast<size_t>(t)]) << begin + t << ", " << layer;
  }
}

TEST(RecordRouting, RefusesAModelWithoutExperts) {
  model::DecoderShape dense = traced_shape();
  dense.family = "llama", dense.experts = {};
  EXPECT_EQ(base::message_of([&] { expert_layers(*model::make_decoder(dense)); }), "the model has no experts to place");
}

}  // namespace
}  // namespace cairn::planner
