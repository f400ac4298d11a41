#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/decoder/adapter_shape.h"
#include "model/decoder/decoder.h"
#include "model/decoder/pool_index.h"
#include "model/model.h"
#include "model/name_pattern.h"
#include "model/trainable.h"

namespace cairn::model {
namespace {

TEST(NamePattern, LetsAStarStandForAnything) {
  for (const char* pattern : {"a.b.c", "*", "a*", "*c", "a*c", "*.b.*", "a.*.c", "**", "a.b.c*"})
    EXPECT_TRUE(matches(pattern, "a.b.c")) << pattern;
  for (const char* pattern : {"", "a", "b*", "*b", "a.b.c.", "*d*", "a?b.c", "a.b.cc"}) EXPECT_FALSE(matches(pattern, "a.b.c")) << pattern;
  EXPECT_TRUE(matches("*aab", "aaaab"));
  EXPECT_TRUE(matches("", ""));
}

TEST(AdapterShape, TargetsLayersByTheEndOfTheirNames) {
  const AdapterShape lora{.rank = 4, .alpha = 8, .targets = {"q_proj", "layers.1.mlp.*"}};
  EXPECT_TRUE(lora.targets_module("model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(lora.targets_module("model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(lora.targets_module("model.layers.0.self_attn.xq_proj"));
  EXPECT_FALSE(lora.targets_module("model.layers.11.mlp.up_proj"));
  EXPECT_EQ(lora.scale(), 2);
  EXPECT_EQ((AdapterShape{.rank = 4, .alpha = 8, .targets = {}, .by_root = true}.scale()), 4);
  EXPECT_FALSE(AdapterShape().targets_module("q_proj"));
}

std::vector<std::string> trained(const Model& model, const std::vector<std::string>& patterns) {
  std::vector<std::string> names;
  const std::vector<bool> chosen = trainable(model, patterns);
  for (size_t i = 0; i < chosen.size(); ++i)
    if (chosen[i]) names.push_back(model.parameters()[i].name);
  return names;
}

TEST(Trainable, IsChosenByNameRoleOrAdapter) {
  const auto plain = make_decoder({.layers = 1}), adapted = make_decoder({.layers = 1}, {.rank = 2, .targets = {"o_proj"}});
  EXPECT_EQ(trained(*plain, {}).size(), plain->parameters().size());
  const std::string o = "model.layers.0.self_attn.o_proj.";
  EXPECT_THAT(trained(*adapted, {}), testing::ElementsAre(o + "lora_A.weight", o + "lora_B.weight"));
  EXPECT_THAT(trained(*adapted, {"*.lora_B.*", "role:embedding"}), testing::ElementsAre("model.embed_tokens.weight", o + "lora_B.weight"));
  EXPECT_EQ(trained(*plain, {"role:norm"}).size(), 3u);
  try {
    trained(*plain, {"*.lora_*"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_THAT(error.what(), testing::HasSubstr("model.train: \"*.lora_*\" fits no parameter"));
  }
}

AdapterShape pooled(int64_t rank, int64_t equivalent, int64_t private_rank, int64_t shards) {
  return {.rank = rank,
          .targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
          .kind = AdapterKind::mos,
          .equivalent_rank = equivalent,
          .private_rank = private_rank,
          .shards = shards};
}

TEST(PoolIndex, TakesPublicRowsOnceAndTheLayersOwn) {
  constexpr int64_t kLayers = 6, kPublic = (3 - 1) * kLayers * 4;
  const AdapterShape shape = pooled(5, 3, 1, 4);
  const PoolIndex index = make_pool_index(shape, "self_attn.q_proj", kLayers);
  ASSERT_EQ(index.a.size(), 6u);
  for (const auto* side : {&index.a, &index.b})
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const std::vector<int64_t>& rows = (*side)[static_cast<size_t>(layer)];
      ASSERT_EQ(rows.size(), 20u);
      EXPECT_EQ(std::set<int64_t>(rows.begin(), rows.end()).size(), 20u);
      for (size_t i = 0; i < 16; ++i) EXPECT_LT(rows[i], kPublic);
      for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(rows[static_cast<size_t>(16 + i)], kPublic + layer * 4 + i);
    }
  EXPECT_NE(index.a, index.b);
  EXPECT_NE(index.a[0], index.a[1]);
  AdapterShape same = shape;
  same.dissociate = false;
  EXPECT_EQ(make_pool_index(same, "self_attn.q_proj", kLayers).b, make_pool_index(same, "self_attn.q_proj", kLayers).a);
  AdapterShape other = shape;
  other.index_seed = 1;
  EXPECT_NE(make_pool_index(other, "self_attn.q_proj", kLayers).checksum(), index.checksum());
  EXPECT_EQ(make_pool_index(shape, "self_attn.q_proj", kLayers).checksum(), index.checksum());
  const PoolUse use = public_use(shape, index.a, kLayers);
  EXPECT_DOUBLE_EQ(use.mean, 16.0 * kLayers / kPublic);
  EXPECT_GE(use.most, 2);
  int64_t rows = 0, taken = 0;
  for (const auto& [layers, count] : use.rows) rows += count, taken += layers * count;
  EXPECT_EQ(rows, kPublic);
  EXPECT_EQ(taken, 16 * kLayers);
}

TEST(PoolIndex, RefusesShapesThatNoPoolHas) {
  const auto refusal = [](const AdapterShape& shape, int64_t in = 64, int64_t out = 32) -> std::string {
    try {
      check_pools(shape, 4, "self_attn.q_proj", in, out);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(pooled(8, 2, 0, 4)), "accepted");
  EXPECT_EQ(refusal(pooled(5, 2, 1, 4)), "accepted");
  EXPECT_THAT(refusal(pooled(6, 2, 1, 4)), testing::HasSubstr("Use a rank of at most 5"));
  EXPECT_THAT(refusal(pooled(8, 2, 0, 5)), testing::HasSubstr("self_attn.q_proj is 32 x 64, which so many pieces do not divide"));
  EXPECT_THAT(refusal(pooled(8, 2, 0, 5)), testing::HasSubstr("1, 2, 4, 8, 16, 32"));
  EXPECT_THAT(refusal(pooled(8, 2, 3, 4)), testing::HasSubstr("private_rank = 3"));
  EXPECT_THAT(refusal(pooled(8, 2, 2, 4)), testing::HasSubstr("plain LoRA"));
}

TEST(PoolIndex, PoolsHaveTheParametersOfTheEquivalentRank) {
  const DecoderShape llama7b{.vocab = 32000, .embed = 4096, .layers = 32, .heads = 32, .kv_heads = 32, .head_dim = 128, .mlp = 11008};
  const auto trained = [&](AdapterShape shape) {
    int64_t elements = 0;
    const auto decoder = make_decoder(llama7b, shape);
    for (const Parameter& p : decoder->parameters())
      if (p.role == Parameter::Role::adapter) elements += p.elements();
    return elements;
  };
  AdapterShape lora = pooled(2, 0, 0, 1);
  lora.kind = AdapterKind::lora;
  EXPECT_EQ(trained(lora), 4'997'120);
  EXPECT_EQ(trained(pooled(8, 2, 1, 4)), 4'997'120);
  EXPECT_EQ(trained(pooled(32, 8, 2, 4)), 19'988'480);
  lora.rank = 64;
  EXPECT_EQ(trained(lora), 159'907'840);
}

// A pool is one parameter for all layers, and each layer's use counts as a contribution to its gradient.
TEST(PoolIndex, APoolIsOneParameterThatEveryLayerUses) {
  const auto model = make_decoder({.layers = 3}, pooled(4, 2, 0, 2));
  int64_t pools = 0;
  for (const Parameter& p : model->parameters()) {
    if (p.role != Parameter::Role::adapter) continue;
    EXPECT_EQ(p.uses, 3) << p.name;
    EXPECT_TRUE(p.of_many_layers);
    ++pools;
  }
  EXPECT_EQ(pools, 14);
  const Buffers buffers = model->make_buffers(at::kFloat);
  EXPECT_EQ(buffers.at("adapters.mlp.down_proj.a").sizes(), (std::vector<int64_t>{3, 8}));
}

}  // namespace
}  // namespace cairn::model
