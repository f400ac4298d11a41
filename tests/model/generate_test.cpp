#include "model/generate.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "kernels/aten.h"
#include "model/decoder.h"

namespace cairn::model {
namespace {

struct Small {
  DecoderShape shape{
      .vocab = 29, .embed = 16, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 4, .mlp = 24, .length = 20, .tied = true};
  std::unique_ptr<Model> model = make_decoder(shape);
  FlatWeights weights{model->layout(), at::empty({model->elements()})};
  Buffers buffers = model->make_buffers(at::kFloat);
  Small() {
    materialise(*model, weights.flat(), base::Random(4));
    weights.flat().mul_(12);  // so that tokens differ clearly in likelihood
  }
  // The likeliest next token by a full forward pass, without a cache.
  int32_t next(const std::vector<int32_t>& ids) {
    at::NoGradGuard no_grad;
    const mesh::Axes alone;
    const Call call{.weights = weights, .buffers = buffers, .axes = alone};
    Values values;
    values.put("tokens", at::tensor(ids, at::kInt).to(at::kLong).view({1, -1}));
    for (const auto& block : model->blocks()) block->plain(values, call);
    return static_cast<int32_t>(values.get("logits")[0][-1].argmax().item<int64_t>());
  }
};

TEST(Generate, WithACacheGivesWhatFullPassesGive) {
  Small small;
  std::vector<int32_t> ids{3, 1, 4, 1, 5};
  const Generated found = generate(*small.model, small.weights, small.buffers, ids, {.tokens = 9, .length_max = 20, .temperature = 0});
  ASSERT_EQ(found.ids.size(), 9u);
  for (int32_t id : found.ids) {
    EXPECT_EQ(id, small.next(ids));
    ids.push_back(id);
  }
}

TEST(Generate, IsDecidedByItsSeedAndStopsAtTheModelsLength) {
  Small small;
  const auto draw = [&](uint64_t seed) {
    return generate(*small.model, small.weights, small.buffers, {2, 3},
                    {.tokens = 100, .length_max = 20, .temperature = 1.5, .top_k = 0, .random = base::Random(seed)})
        .ids;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
  EXPECT_EQ(draw(1).size(), 18u);
}

TEST(Generate, EndsAtTheStopToken) {
  Small small;
  const std::vector<int32_t> all =
      generate(*small.model, small.weights, small.buffers, {7}, {.tokens = 10, .length_max = 20, .temperature = 0}).ids;
  const std::vector<int32_t> cut =
      generate(*small.model, small.weights, small.buffers, {7}, {.tokens = 10, .length_max = 20, .temperature = 0, .stop = all[0]}).ids;
  EXPECT_TRUE(cut.empty());
}

}  // namespace
}  // namespace cairn::model
