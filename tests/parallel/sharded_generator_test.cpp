// Generation on several ranks gives the tokens of one rank.
#include "parallel/generate/sharded_generator.h"

#include <chrono>

#include <ATen/core/IListRef.h>
#include <gtest/gtest.h>

#include "base/error_of.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/families/families.h"
#include "model/some_experts.h"

namespace cairn::parallel {
namespace {

using model::DecoderShape;
using model::GeneratedText;
using model::GenerateOptions;
using model::GenerateRequest;
using model::SamplingOptions;

constexpr SamplingOptions kGreedily{.temperature = 0};
constexpr SamplingOptions kDrawn{.temperature = 1.3, .top_k = 0, .top_p = 0.95};

DecoderShape sharded_shape(const std::string& family, const std::string& residual = "standard") {
  const model::Family& kind = model::family(family);
  DecoderShape shape{.vocab = 31, .embed = 24, .layers = 3, .heads = 4, .kv_heads = 4, .head_dim = 6, .mlp = 26, .length = 150};
  shape.family = family;
  if (family == "mistral") shape.window = 5;
  if (family == "qwen3" || family == "llama") shape.kv_heads = 2;
  shape.tied = family != "qwen3";
  shape.qkv_bias = kind.qkv_bias, shape.out_bias = kind.out_bias, shape.mlp_bias = kind.mlp_bias;
  shape.residual = residual;
  if (residual == "ladder") shape.ladder_layers = {1, 2};
  return model::with_experts(shape);
}

at::Tensor whole_weights(const model::Model& model) {
  const at::Tensor flat = at::empty({model.elements()});
  base::Random(5).fill_normal({flat.mutable_data_ptr<float>(), static_cast<size_t>(flat.numel())});
  return flat.mul_(0.4);  // so that tokens differ clearly in likelihood; biases and gains too
}

// Odd and unequal lengths; the last prompt occurs twice, with another draw.
std::vector<GenerateRequest> unequal_requests() {
  std::vector<GenerateRequest> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    std::vector<int32_t> prompt;
    for (uint64_t j = 0; j <= i * 5 % 13; ++j) prompt.push_back(static_cast<int32_t>(base::Random(i).below(j, 31)));
    requests.push_back({prompt, base::Random(9).for_index(i)});
  }
  requests.push_back({requests.back().prompt, base::Random(10)});
  return requests;
}

std::vector<GeneratedText> on_one_rank(const DecoderShape& shape, const std::vector<GenerateRequest>& requests,
                                       const GenerateOptions& options, const model::OnToken& on_token = {}) {
  const auto model = model::make_decoder(shape);
  const model::FlatWeights weights(model->layout(), whole_weights(*model));
  model::Buffers buffers = model->make_buffers(at::kFloat);
  return model::generate(*model, weights, buffers, requests, options, on_token);
}

// Calls `drive` on the first rank of a mesh over which the model is sharded. `kept` receives each rank's parameter elements.
harness::Run on_mesh(const DecoderShape& shape, const std::string& mesh, const std::function<void(ShardedGenerator&)>& drive,
                     std::vector<int64_t>* kept = nullptr, const harness::Options& how = {}, const comm::World** driver = nullptr) {
  const mesh::Mesh ranks = mesh::parse_mesh(mesh);
  if (kept) kept->assign(static_cast<size_t>(ranks.size()), 0);
  return harness::on_ranks(ranks.size(), how, [&](comm::World& world) {
    const auto model = model::make_decoder(shape);
    const Plan plan = generation_plan(ranks, *model);
    const ModelShard shard = model_shard(*model, plan, world.rank());
    const auto weights = allocate_shards(*model, plan, shard, at::kFloat);
    const mesh::NamedTensors local = weights->layout().views(weights->flat()), whole = model->layout().views(whole_weights(*model));
    for (size_t i = 0; i < local.size(); ++i)
      if (shard.parameters[i].here) local[i].tensor.copy_(cut_out(whole[i].tensor, shard.parameters[i].local_shard));
    if (kept) (*kept)[static_cast<size_t>(world.rank())] = weights->flat().numel();
    model::Buffers buffers = model->make_buffers(at::kFloat);
    ShardedGenerator sharded({.world = world, .model = *model, .plan = plan, .weights = *weights, .buffers = buffers});
    if (!sharded.drives()) return sharded.follow();
    if (driver) *driver = &world;
    drive(sharded);
    sharded.close();
  });
}

void expect_same(const std::vector<GeneratedText>& found, const std::vector<GeneratedText>& expected, const std::string& where) {
  ASSERT_EQ(found.size(), expected.size()) << where;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].ids, expected[i].ids) << where << ", request " << i;
    EXPECT_EQ(found[i].finish_reason, expected[i].finish_reason) << where;
    ASSERT_EQ(found[i].log_probabilities.size(), expected[i].log_probabilities.size()) << where;
    for (size_t t = 0; t < found[i].ids.size(); ++t)
      EXPECT_NEAR(found[i].log_probabilities[t], expected[i].log_probabilities[t], 2e-4) << where << ", token " << t;
  }
}

void expect_tokens_of_one_rank(const DecoderShape& shape, const std::string& mesh) {
  const std::vector<GenerateRequest> requests = unequal_requests();
  const GenerateOptions greedy{.tokens = 8, .length_max = shape.length, .sampling = kGreedily};
  const GenerateOptions drawn{.tokens = 8, .length_max = shape.length, .vocab = 29, .sampling = kDrawn, .stops = {7}};
  const std::string where = shape.family + ", " + shape.residual + ", " + mesh;
  on_mesh(shape, mesh, [&](ShardedGenerator& sharded) {
    expect_same(sharded.generate(requests, greedy), on_one_rank(shape, requests, greedy), where + ", greedy");
    expect_same(sharded.generate(requests, drawn), on_one_rank(shape, requests, drawn), where + ", drawn");
  });
}

class ShardedFamilies : public testing::TestWithParam<std::string> {};

TEST_P(ShardedFamilies, GiveTheTokensOfOneRankOnEveryMesh) {
  for (const std::string mesh : {"tp=2", "tp=4", "pp=2", "pp=3", "pp=2,tp=2"})
    if (!model::family(GetParam()).qk_norm_together || mesh.find("tp") == std::string::npos)  // such a norm sees all heads of a token
      expect_tokens_of_one_rank(sharded_shape(GetParam()), mesh);
}

INSTANTIATE_TEST_SUITE_P(All, ShardedFamilies, testing::ValuesIn(model::family_names()), [](const auto& test) { return test.param; });

class ShardedWirings : public testing::TestWithParam<std::string> {};

TEST_P(ShardedWirings, GiveTheTokensOfOneRankOnEveryMesh) {
  for (const char* mesh : {"tp=2", "tp=4", "pp=2", "pp=3", "pp=2,tp=2"})
    expect_tokens_of_one_rank(sharded_shape("llama", GetParam()), mesh);
}

INSTANTIATE_TEST_SUITE_P(All, ShardedWirings, testing::Values("ladder", "parallel"), [](const auto& test) { return test.param; });

TEST(ShardedGenerator, CutsBetweenAnyTwoBlocks) {
  for (const char* wiring : {"standard", "ladder", "parallel"}) {
    DecoderShape shape = sharded_shape("llama", wiring);
    shape.layers = 1;
    shape.ladder_layers = {};
    const auto blocks = std::to_string(model::make_decoder(shape)->blocks().size());  // a stage each
    expect_tokens_of_one_rank(shape, "pp=" + blocks);
  }
}

TEST(ShardedGenerator, SharesHeadsAndVocabularyUnevenly) {
  DecoderShape shape = sharded_shape("llama");
  shape.heads = 6, shape.kv_heads = 3, shape.vocab = 31;  // 2 and 1 key heads, 16 and 15 ids
  expect_tokens_of_one_rank(shape, "tp=2");
}

// A head keeps its own pattern on whatever rank it lies, also where ranks hold unequally many.
TEST(ShardedGenerator, KeepsTheBlocksThatAHeadOfTheModelSees) {
  DecoderShape shape = sharded_shape("llama");
  shape.heads = 6, shape.kv_heads = 3;
  shape.pattern = kernels::BlockPattern{.block = 16, .local_blocks = 1, .stride = 3, .kv_heads = 3};
  shape.dense_layers = {1};
  std::vector<GenerateRequest> requests = unequal_requests();
  for (int32_t i = 0; i < 110; ++i) requests[2].prompt.push_back(i * i % 31);
  const GenerateOptions greedy{.tokens = 20, .length_max = shape.length, .sampling = kGreedily};
  for (const char* mesh : {"tp=2", "tp=3", "pp=2"})
    on_mesh(shape, mesh, [&](ShardedGenerator& sharded) {
      expect_same(sharded.generate(requests, greedy), on_one_rank(shape, requests, greedy), mesh);
    });
}

TEST(ShardedGenerator, RunsParallelStreamsOnEachRanksHeads) {
  DecoderShape shape = sharded_shape("llama");
  shape.streams = {.count = 3, .prefix_tokens = 4, .smoothing = 0.01};
  const std::vector<GenerateRequest> requests = unequal_requests();
  const GenerateOptions greedy{.tokens = 12, .length_max = shape.length, .sampling = kGreedily};
  for (const char* mesh : {"tp=2", "pp=2", "pp=2,tp=2"})
    on_mesh(shape, mesh, [&](ShardedGenerator& sharded) {
      expect_same(sharded.generate(requests, greedy), on_one_rank(shape, requests, greedy), mesh);
    });
}

TEST(ShardedGenerator, KeepsAPartOfTheModelOnEachRank) {
  const DecoderShape shape = sharded_shape("llama");
  const int64_t all = model::make_decoder(shape)->elements();
  for (const char* mesh : {"tp=2", "tp=4", "pp=2,tp=2"}) {
    std::vector<int64_t> kept;
    on_mesh(
        shape, mesh, [](ShardedGenerator&) {}, &kept);
    for (const int64_t elements : kept) EXPECT_LT(elements, all * 6 / 10) << mesh;
  }
}

TEST(ShardedGenerator, GrowsItsCacheBeyondTheFirstRoom) {
  const DecoderShape shape = sharded_shape("llama");
  const std::vector<GenerateRequest> requests{{{3, 1, 4, 1, 5}}, {{2, 7}}};
  const GenerateOptions options{.tokens = 100, .length_max = 90, .sampling = kGreedily};
  for (const char* mesh : {"tp=2", "pp=2"})
    on_mesh(shape, mesh, [&](ShardedGenerator& sharded) {
      const std::vector<GeneratedText> found = sharded.generate(requests, options);
      EXPECT_EQ(found[0].finish_reason, model::FinishReason::context);
      expect_same(found, on_one_rank(shape, requests, options), mesh);
    });
}

TEST(ShardedGenerator, EndsASequenceWhereTheCallerSaysSo) {
  const DecoderShape shape = sharded_shape("qwen2");
  const std::vector<GenerateRequest> requests{{{3, 1, 4}}, {{3, 1, 4}}, {{9}}};
  const GenerateOptions options{.tokens = 6, .length_max = 100, .sampling = kGreedily};
  const auto stop_first_after_two = [](std::vector<int64_t>& heard) {
    return [&heard](int64_t request, int32_t) { return ++heard[static_cast<size_t>(request)] < 2 || request != 0; };
  };
  on_mesh(shape, "pp=2,tp=2", [&](ShardedGenerator& sharded) {
    std::vector<int64_t> heard(3), expected(3);
    const std::vector<GeneratedText> found = sharded.generate(requests, options, stop_first_after_two(heard));
    EXPECT_EQ(found[0].finish_reason, model::FinishReason::stop_text);
    EXPECT_EQ(heard, (std::vector<int64_t>{2, 6, 6}));
    expect_same(found, on_one_rank(shape, requests, options, stop_first_after_two(expected)), "stopped");
    EXPECT_TRUE(sharded.generate({}, options).empty());
  });
}

TEST(ShardedGenerator, LetsRowsAtOnePositionShareTheirSums) {
  const DecoderShape shape = sharded_shape("llama");
  const std::vector<GenerateRequest> requests(4, GenerateRequest{{3, 1, 4}});
  const auto messages = [&](size_t rows) {
    const harness::Run run = on_mesh(shape, "tp=2", [&](ShardedGenerator& sharded) {
      sharded.generate(std::span(requests).first(rows), {.tokens = 4, .length_max = 50, .sampling = kGreedily});
    });
    return run.ledger.messages_sent(0, comm::Purpose::activation);
  };
  EXPECT_GT(messages(1), 0);
  EXPECT_EQ(messages(4), messages(1));
}

TEST(ShardedGenerator, HidesSumsOfTheLadderBehindEachOther) {
  const auto seconds_per_token = [](const char* wiring) {
    DecoderShape shape = sharded_shape("llama", wiring);
    shape.layers = 6;
    if (!shape.ladder_layers.empty()) shape.ladder_layers = {0, 1, 2, 3, 4, 5};
    double seconds = 0;
    const std::vector<GenerateRequest> requests{{{3, 1, 4}}};
    std::vector<std::chrono::nanoseconds> at;
    const comm::World* driver = nullptr;
    harness::Options slow;
    slow.link.latency = std::chrono::milliseconds(3);
    slow.link.jitter = 0;
    on_mesh(
        shape, "tp=2",
        [&](ShardedGenerator& sharded) {
          sharded.generate(requests, {.tokens = 5, .length_max = 50, .sampling = kGreedily}, [&](int64_t, int32_t) {
            at.push_back(driver->clock().now());
            return true;
          });
          seconds = std::chrono::duration<double>(at.back() - at.front()).count() / 4;
        },
        nullptr, slow, &driver);
    return seconds;
  };
  // In the standard wiring 12 sums of 3 ms follow each other, in the ladder 6. Both have another for the embedding, 3 ms for the command
  // and 3 ms for the logits.
  EXPECT_NEAR(seconds_per_token("standard"), 0.045, 1e-3);
  EXPECT_NEAR(seconds_per_token("ladder"), 0.027, 1e-3);
}

TEST(ShardedGenerator, RefusesMeshesThatTheModelCannotHave) {
  const auto refused = [](const DecoderShape& shape, const char* mesh) {
    return base::message_of([&] { generation_plan(mesh::parse_mesh(mesh), *model::make_decoder(shape)); });
  };
  const DecoderShape llama = sharded_shape("llama");
  EXPECT_EQ(refused(llama, "dp=2"), "--mesh dp=2: generation shards a model along tp, pp and ep, not along dp; leave dp out");
  EXPECT_EQ(refused(llama, "pp=9"), "--mesh pp=9: 9 stages, and the model has 8 blocks; use at most pp=8");
  EXPECT_NE(refused(llama, "tp=3").find("4 query and 2 key heads cannot be split over so many ranks"), std::string::npos);
  EXPECT_NE(refused(sharded_shape("gpt2"), "tp=5").find("(--mesh tp=5)"), std::string::npos);
}

TEST(ShardedGenerator, RefusesAPromptThatFillsTheModelAndGoesOn) {
  const DecoderShape shape = sharded_shape("llama");
  const std::vector<GenerateRequest> longer{{std::vector<int32_t>(20, 1)}}, fitting{{std::vector<int32_t>(19, 1)}};
  const GenerateOptions options{.tokens = 3, .length_max = 20, .sampling = kGreedily};
  on_mesh(shape, "tp=2", [&](ShardedGenerator& sharded) {
    EXPECT_EQ(base::message_of([&] { sharded.generate(longer, options); }),
              "a prompt of 20 tokens leaves no room for an answer: the model reads at most 20");
    expect_same(sharded.generate(fitting, options), on_one_rank(shape, fitting, options), "after a refusal");
  });
}

}  // namespace
}  // namespace cairn::parallel
