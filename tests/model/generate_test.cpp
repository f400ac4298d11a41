#include "model/generate/generate.h"

#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/error_of.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/families/families.h"
#include "model/generate/decode_step.h"
#include "model/some_experts.h"

namespace cairn::model {
namespace {

DecoderShape small_shape(const std::string& name) {
  const Family& kind = family(name);
  DecoderShape shape{.vocab = 29, .embed = 16, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 4, .mlp = 24, .length = 200};
  shape.family = name;
  if (name == "gpt2") shape.kv_heads = 4;
  if (name == "mistral") shape.window = 5;
  shape.tied = name != "qwen3";
  shape.qkv_bias = kind.qkv_bias, shape.out_bias = kind.out_bias, shape.mlp_bias = kind.mlp_bias;
  return with_experts(shape);
}

struct Small {
  DecoderShape shape;
  std::unique_ptr<Model> model;
  FlatWeights weights;
  Buffers buffers;
  explicit Small(const std::string& name = "llama", const AdapterShape& lora = {})
      : shape(small_shape(name)),
        model(make_decoder(shape, lora)),
        weights(model->layout(), at::empty({model->elements()})),
        buffers(model->make_buffers(at::kFloat)) {
    initialize_parameters(*model, weights.flat(), base::Random(4));
    base::Random(5).fill_normal({weights.flat().mutable_data_ptr<float>(), static_cast<size_t>(weights.flat().numel())});
    weights.flat().mul_(0.4);  // so that tokens differ clearly in likelihood; biases and gains too
  }

  at::Tensor logits(const std::vector<int32_t>& ids) {  // by a full pass, without a cache
    at::NoGradGuard no_grad;
    const mesh::Axes alone;
    const Call call{.weights = weights, .buffers = buffers, .axes = alone};
    Values values;
    values.put("tokens", at::tensor(ids, at::kInt).to(at::kLong).view({1, -1}));
    for (const auto& block : model->blocks()) block->plain(values, call);
    return values.get("logits")[0][-1];
  }

  std::vector<GeneratedText> write(const std::vector<GenerateRequest>& requests, GenerateOptions options, const OnToken& on_token = {}) {
    if (options.length_max == 0) options.length_max = shape.length;
    return generate(*model, weights, buffers, requests, options, on_token);
  }
  GeneratedText write_one(const std::vector<int32_t>& prompt, const GenerateOptions& options) {
    return write({GenerateRequest{prompt}}, options)[0];
  }
};

constexpr SamplingOptions kGreedy{.temperature = 0};

TEST(Generate, WithACacheGivesWhatFullPassesGiveInEveryFamily) {
  for (const std::string& name : family_names()) {
    Small small(name);
    const bool by_blocks = family(name).linear_attention || family(name).has_experts();
    ASSERT_EQ(DecodeStep::make(*small.model, small.weights, small.buffers) == nullptr, by_blocks) << name;
    std::vector<int32_t> ids{3, 1, 4, 1, 5};
    const GeneratedText found = small.write_one(ids, {.tokens = 70, .sampling = kGreedy});  // beyond the cache's first capacity
    ASSERT_EQ(found.ids.size(), 70u);
    for (size_t i = 0; i < found.ids.size(); ids.push_back(found.ids[i++])) {
      if (i % 9 != 0 && i != 1) continue;  // a full pass takes its time
      const at::Tensor logits = small.logits(ids);
      EXPECT_EQ(found.ids[i], logits.argmax().item<int64_t>()) << name << " at " << i;
      EXPECT_NEAR(found.log_probabilities[i], logits.log_softmax(0)[found.ids[i]].item<float>(), 2e-5) << name << " at " << i;
    }
  }
}

TEST(Generate, WritesThroughTheBlocksWhereAdaptersStandBesideTheLayers) {
  Small small("llama", {.rank = 2, .alpha = 4, .targets = {"q_proj", "down_proj"}});
  EXPECT_EQ(DecodeStep::make(*small.model, small.weights, small.buffers), nullptr);
  std::vector<int32_t> ids{3, 1, 4};
  const std::vector<GeneratedText> found = small.write({GenerateRequest{{9, 9}}, GenerateRequest{ids}}, {.tokens = 8, .sampling = kGreedy});
  for (int32_t id : found[1].ids) {
    EXPECT_EQ(id, small.logits(ids).argmax().item<int64_t>());
    ids.push_back(id);
  }
}

TEST(Generate, WritesUnequalPromptsTogetherAsOneByOne) {
  for (const std::string& name : family_names()) {
    Small small(name);
    std::vector<GenerateRequest> requests;
    for (uint64_t i = 0; i < 5; ++i) {
      std::vector<int32_t> prompt;
      for (uint64_t j = 0; j <= i * 5 % 13; ++j) prompt.push_back(static_cast<int32_t>(base::Random(i).below(j, 29)));
      requests.push_back({prompt, base::Random(9).for_index(i)});
    }
    requests.push_back(requests.back());  // the same prompt again, another draw
    requests.back().random = base::Random(10);
    for (const SamplingOptions& sampling : {kGreedy, SamplingOptions{.temperature = 1.5, .top_k = 0, .top_p = 0.95}}) {
      const std::vector<GeneratedText> together = small.write(requests, {.tokens = 12, .sampling = sampling, .stops = {7}});
      for (size_t i = 0; i < requests.size(); ++i) {
        const GeneratedText alone = small.write({requests[i]}, {.tokens = 12, .sampling = sampling, .stops = {7}})[0];
        EXPECT_EQ(together[i].ids, alone.ids) << name << ", request " << i;
        EXPECT_EQ(together[i].log_probabilities, alone.log_probabilities) << name << ", request " << i;
        EXPECT_EQ(together[i].finish_reason, alone.finish_reason);
      }
    }
  }
}

TEST(Generate, GivesTheSameTokensWithAnyNumberOfThreads) {
  const DecoderShape shape{.vocab = 1500, .embed = 120, .layers = 2, .heads = 5, .kv_heads = 1, .head_dim = 24, .mlp = 1001, .length = 64};
  const auto model = make_decoder(shape);
  const FlatWeights weights(model->layout(), at::empty({model->elements()}));
  initialize_parameters(*model, weights.flat(), base::Random(4));
  ASSERT_GT(model->elements(), 900'000);  // enough that three threads share a step
  Buffers buffers = model->make_buffers(at::kFloat);
  const int before = at::get_num_threads();
  const GenerateRequest request{{1, 2, 3}};
  std::vector<GeneratedText> found;
  for (int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    found.push_back(generate(*model, weights, buffers, {&request, 1}, {.tokens = 20, .length_max = 64, .sampling = kGreedy})[0]);
  }
  at::set_num_threads(before);
  for (size_t i : {1, 2}) {
    EXPECT_EQ(found[i].ids, found[0].ids);
    for (size_t t = 0; t < found[0].ids.size(); ++t)  // the prompt is read by products that libtorch shares out in its own way
      EXPECT_NEAR(found[i].log_probabilities[t], found[0].log_probabilities[t], 1e-5);
  }
}

TEST(Generate, IsDecidedByItsSeed) {
  Small small;
  const auto draw = [&](uint64_t seed) {
    return small.write({GenerateRequest{{2, 3}, base::Random(seed)}}, {.tokens = 30, .sampling = {.temperature = 1.5, .top_k = 0}})[0].ids;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(Generate, SaysWhyEachTextEnded) {
  Small small;
  const GeneratedText all = small.write_one({7}, {.tokens = 10, .sampling = kGreedy});
  EXPECT_EQ(all.finish_reason, FinishReason::tokens);
  EXPECT_EQ(name(all.finish_reason), "tokens");
  const GeneratedText stopped = small.write_one({7}, {.tokens = 10, .sampling = kGreedy, .stops = {28, all.ids[0]}});
  EXPECT_TRUE(stopped.ids.empty());
  EXPECT_EQ(name(stopped.finish_reason), "end_of_text");
  const GeneratedText full = small.write_one({7, 8}, {.tokens = 1000, .length_max = 20, .sampling = kGreedy});
  EXPECT_EQ(full.ids.size(), 18u);
  EXPECT_EQ(name(full.finish_reason), "context");
  std::vector<std::pair<int64_t, int32_t>> heard;
  const std::vector<GeneratedText> cut =
      small.write({GenerateRequest{{7}}, GenerateRequest{{7}}}, {.tokens = 6, .sampling = kGreedy}, [&](int64_t i, int32_t id) {
        heard.emplace_back(i, id);
        return i == 1 || heard.size() < 4;
      });
  EXPECT_EQ(cut[0].ids, (std::vector<int32_t>(all.ids.begin(), all.ids.begin() + 3)));
  EXPECT_EQ(name(cut[0].finish_reason), "stop");
  EXPECT_EQ(cut[1].ids, (std::vector<int32_t>(all.ids.begin(), all.ids.begin() + 6)));
  EXPECT_EQ(heard.size(), 9u);
  EXPECT_EQ(heard[0], (std::pair<int64_t, int32_t>{0, all.ids[0]}));
}

TEST(Generate, AddsNothingWhereNothingIsAskedFor) {
  Small small;
  EXPECT_TRUE(small.write_one({7}, {.tokens = 0}).ids.empty());
  EXPECT_TRUE(small.write(std::vector<GenerateRequest>{}, {.tokens = 3}).empty());
}

TEST(Generate, RefusesAPromptThatFillsTheModel) {
  Small small;
  EXPECT_EQ(base::message_of([&] { small.write_one(std::vector<int32_t>(20, 1), {.tokens = 3, .length_max = 20}); }),
            "a prompt of 20 tokens leaves no room for an answer: the model reads at most 20");
  EXPECT_EQ(small.write_one(std::vector<int32_t>(19, 1), {.tokens = 3, .length_max = 20}).ids.size(), 1u);
}

}  // namespace
}  // namespace cairn::model
