// S2-Attention in a model: its keys and its config.json, and generation with a cache that keeps a part of the positions.
#include "model/decoder/attention_pattern.h"

#include <filesystem>
#include <fstream>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/error_of.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/families/config.h"
#include "model/generate/cached_blocks.h"
#include "model/generate/generate.h"
#include "model/model.h"

namespace cairn::model {
namespace {

DecoderShape shape_of(const PatternOptions& options, int64_t length = 400) {
  DecoderShape shape{.vocab = 29, .embed = 32, .layers = 3, .heads = 8, .kv_heads = 4, .head_dim = 4, .mlp = 24, .length = length};
  set_pattern(shape, options);
  return shape;
}

const PatternOptions kSmall{.type = "s2", .block = 16, .local_blocks = 2, .stride = 4};

TEST(AttentionPattern, ConfigJsonHoldsThePattern) {
  PatternOptions options = kSmall;
  options.offset = 3, options.dense_heads = 1, options.dense_layers = "every 2";
  const DecoderShape shape = shape_of(options);
  EXPECT_EQ(shape.dense_layers, (std::vector<int64_t>{1}));
  const std::string text = format_config(shape);
  EXPECT_NE(text.find("\"model_type\": \"llama_s2\""), std::string::npos) << "a reader that knows no patterns must not take it for llama";
  EXPECT_NE(text.find("\"S2LlamaForCausalLM\""), std::string::npos);
  EXPECT_EQ(parse_config(text, "config.json"), shape);
  EXPECT_EQ(pattern_options_of(shape).dense_layers, "1");
}

TEST(AttentionPattern, APatternOfOnesOwnIsReadAndKept) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "pattern.json";
  std::ofstream(file) << R"([["1","01","101","0011"]])";
  PatternOptions options = kSmall;
  options.pattern_file = file;
  const DecoderShape shape = shape_of(options, 64);
  ASSERT_TRUE(shape.pattern->table);
  EXPECT_TRUE(shape.pattern->sees(2, 2, 0));
  EXPECT_FALSE(shape.pattern->sees(2, 2, 1));
  EXPECT_EQ(parse_config(format_config(shape), "config.json"), shape);
  std::ofstream(file) << R"([["1","00"]])";
  EXPECT_NE(base::message_of([&] { shape_of(options, 32); }).find("hides block 1 of head 0 from itself"), std::string::npos);
  std::ofstream(file) << R"([["1","01"]])";
  EXPECT_NE(base::message_of([&] { shape_of(options, 64); }).find("Give rows for 4 blocks"), std::string::npos);
}

TEST(AttentionPattern, RefusesWhatLeavesAPartOfTheContextUnseen) {
  PatternOptions options = kSmall;
  options.stride = 6;  // four phases
  const std::string refusal = base::message_of([&] { shape_of(options); });
  EXPECT_NE(refusal.find("model.attention.stride = 6: no head sees blocks beyond the window whose number mod 6 is 1, 2"), std::string::npos)
      << refusal;
  EXPECT_NE(refusal.find("Set stride to at most the 4 phases"), std::string::npos) << refusal;
  options.allow_partial_cover = true;
  EXPECT_TRUE(shape_of(options).pattern.has_value());
  options = kSmall;
  options.homogeneous = true;
  EXPECT_NE(base::message_of([&] { shape_of(options); }).find("at most the 1 phases"), std::string::npos);
  options = kSmall;
  options.block = 48;
  EXPECT_NE(base::message_of([&] { shape_of(options); }).find("model.attention.block = 48: must be a power of two"), std::string::npos);
  options = kSmall;
  options.type = "dense";
  EXPECT_NE(base::message_of([&] { shape_of(options); }).find("have no effect"), std::string::npos);
}

struct Written {
  DecoderShape shape;
  std::unique_ptr<Model> model;
  FlatWeights weights;
  Buffers buffers;
  mesh::Axes alone;

  explicit Written(const PatternOptions& options, int64_t length = 400)
      : shape(shape_of(options, length)),
        model(make_decoder(shape, {})),
        weights(model->layout(), at::empty({model->elements()})),
        buffers(model->make_buffers(at::kFloat)) {
    initialize_parameters(*model, weights.flat(), base::Random(4));
    base::Random(5).fill_normal({weights.flat().mutable_data_ptr<float>(), static_cast<size_t>(weights.flat().numel())});
    weights.flat().mul_(0.4);
  }

  // By a full pass of the plain form, whose attention is dense with a mask.
  at::Tensor masked_logits(const std::vector<int32_t>& ids) {
    const at::NoGradGuard no_grad;
    const Call call{.weights = weights, .buffers = buffers, .axes = alone};
    Values values;
    values.put("tokens", at::tensor(ids, at::kInt).to(at::kLong).view({1, -1}));
    for (const auto& block : model->blocks()) block->plain(values, call);
    return values.get("logits")[0][-1];
  }
};

class SparseGeneration : public testing::TestWithParam<PatternOptions> {};

TEST_P(SparseGeneration, WritesTheTokensOfTheMaskedReference) {
  Written it(GetParam());
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 37; ++i) ids.push_back(i * i % 29);
  const GenerateRequest request{ids};
  const std::vector<GeneratedText> found =
      generate(*it.model, it.weights, it.buffers, {&request, 1}, {.tokens = 250, .length_max = 400, .sampling = {.temperature = 0}});
  ASSERT_EQ(found[0].ids.size(), 250u);
  for (size_t i = 0; i < found[0].ids.size(); ids.push_back(found[0].ids[i++])) {
    if (i % 11 != 0 && i > 2) continue;  // a full pass takes its time
    const at::Tensor logits = it.masked_logits(ids);
    EXPECT_EQ(found[0].ids[i], logits.argmax().item<int64_t>()) << "at " << ids.size();
    EXPECT_NEAR(found[0].log_probabilities[i], logits.log_softmax(0)[found[0].ids[i]].item<float>(), 5e-5) << "at " << ids.size();
  }
}

// Unequal prompts, two of them shared, longer and shorter than the window.
TEST_P(SparseGeneration, WritesTextsTogetherAsOneByOne) {
  Written it(GetParam());
  std::vector<GenerateRequest> requests;
  for (const int32_t length : {3, 90, 90, 33}) {
    requests.emplace_back();
    for (int32_t i = 0; i < length; ++i) requests.back().prompt.push_back((i * i + length) % 29);
  }
  const GenerateOptions options{.tokens = 60, .length_max = 400, .sampling = {.temperature = 0}};
  const std::vector<GeneratedText> together = generate(*it.model, it.weights, it.buffers, requests, options);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(together[i].ids, generate(*it.model, it.weights, it.buffers, {&requests[i], 1}, options)[0].ids) << "request " << i;
}

INSTANTIATE_TEST_SUITE_P(Patterns, SparseGeneration,
                         testing::Values(kSmall, PatternOptions{.type = "s2", .block = 16, .local_blocks = 1, .stride = 3, .offset = 5},
                                         PatternOptions{.type = "s2", .block = 32, .local_blocks = 3, .stride = 2, .dense_heads = 1},
                                         PatternOptions{.type = "s2", .block = 16, .local_blocks = 2, .stride = 4, .dense_layers = "0,2"},
                                         PatternOptions{.type = "s2", .block = 16, .local_blocks = 3, .stride = 3, .near_stride = 2}));

int64_t cache_bytes(Written& it, int64_t positions) {
  CachedBlocks blocks({.model = *it.model,
                       .weights = it.weights,
                       .buffers = it.buffers,
                       .axes = it.alone,
                       .first = 0,
                       .last = it.model->blocks().size(),
                       .rows = 1,
                       .length_max = positions});
  blocks.grow(positions);
  const at::NoGradGuard no_grad;
  Values values;
  values.put("tokens", at::zeros({1, 1}, at::kLong));
  blocks.run(values, 0, 0, 1);
  int64_t bytes = 0;
  for (const auto& [name, tensor] : blocks.cache().tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

TEST(SparseCache, KeepsTheWindowAndOneBlockInEveryStride) {
  constexpr int64_t kPositions = 8192;
  Written dense({}, kPositions), sparse({.type = "s2", .block = 64, .local_blocks = 4, .stride = 4}, kPositions);
  // A window of 256 positions and every fourth of 8192, of which one list serves all phases.
  EXPECT_EQ(cache_bytes(sparse, kPositions) * kPositions, cache_bytes(dense, kPositions) * (256 + kPositions / 4));
}

}  // namespace
}  // namespace cairn::model
