// Generation along ep, in both flows, gives the tokens of one rank; and how many trips a layer takes.
#include <chrono>
#include <mutex>

#include <ATen/core/IListRef.h>
#include <gtest/gtest.h>

#include "base/error_of.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/families/families.h"
#include "model/some_experts.h"
#include "parallel/generate/row_messages.h"
#include "parallel/generate/sharded_generator.h"

namespace cairn::parallel {
namespace {

using model::GeneratedText;

constexpr int64_t kServedExperts = 8;

struct ServedModel {
  model::DecoderShape shape;
  std::string mesh;
  ExpertFlow flow = ExpertFlow::ep;
  ExpertTables tables = {};
};

model::DecoderShape shape_with_experts(const std::string& family, int64_t top_k) {
  model::DecoderShape shape{.vocab = 31, .embed = 24, .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 6, .mlp = 26, .length = 150};
  shape.family = family;
  const model::Family& kind = model::family(family);
  if (kind.qk_norm_together) shape.kv_heads = 4;
  if (family == "mixtral") shape.window = 5;
  shape.tied = false;
  shape.qkv_bias = kind.qkv_bias, shape.out_bias = kind.out_bias;
  shape = model::with_experts(shape);
  shape.experts.count = kServedExperts, shape.experts.top_k = top_k;
  return shape;
}

// Weights by name, so that every rank and layout has the same.
at::Tensor served_weights(const model::Model& model) {
  const at::Tensor flat = at::empty({model.elements()});
  base::Random(6).fill_normal({flat.mutable_data_ptr<float>(), static_cast<size_t>(flat.numel())});
  return flat.mul_(0.4);
}

std::vector<model::GenerateRequest> served_requests() {
  std::vector<model::GenerateRequest> requests;
  for (uint64_t i = 0; i < 5; ++i) {
    std::vector<int32_t> prompt;
    for (uint64_t j = 0; j <= i * 5 % 13; ++j) prompt.push_back(static_cast<int32_t>(base::Random(i).below(j, 31)));
    requests.push_back({prompt, base::Random(9).for_index(i)});
  }
  requests.push_back({requests.back().prompt, base::Random(10)});  // copied from its neighbour, which has another home
  return requests;
}

// Every layer's experts in an order of its own, equally many on each rank.
ExpertTables shuffled_tables(const model::DecoderShape& shape, int ranks, uint64_t seed) {
  ExpertTables tables;
  for (int64_t layer = 0; layer < shape.experts.layers_of(shape.layers); ++layer) {
    mesh::Ragged table = mesh::even_ragged(0, kServedExperts, ranks);
    for (uint64_t i = kServedExperts; i > 1; --i)
      std::swap(table.owners[i - 1], table.owners[base::Random(seed).for_index(static_cast<uint64_t>(layer)).below(i, i)]);
    tables.push_back(table);
  }
  return tables;
}

harness::Run serve(const ServedModel& served, const harness::Options& how,
                   const std::function<void(comm::World&, ShardedGenerator&)>& drive,
                   const std::function<void(comm::World&, ShardedGenerator&)>& after = {}) {
  const mesh::Mesh ranks = mesh::parse_mesh(served.mesh);
  return harness::on_ranks(ranks.size(), how, [&](comm::World& world) {
    const auto model = model::make_decoder(served.shape);
    const Plan plan = generation_plan(ranks, *model, served.tables);
    const ModelShard shard = model_shard(*model, plan, world.rank());
    const auto weights = allocate_shards(*model, plan, shard, at::kFloat);
    const mesh::NamedTensors local = weights->layout().views(weights->flat()), whole = model->layout().views(served_weights(*model));
    for (size_t i = 0; i < local.size(); ++i)
      if (shard.parameters[i].here) local[i].tensor.copy_(cut_out(whole[i].tensor, shard.parameters[i].local_shard));
    model::Buffers buffers = model->make_buffers(at::kFloat);
    ShardedGenerator sharded({.world = world, .model = *model, .plan = plan, .weights = *weights, .buffers = buffers, .flow = served.flow});
    if (sharded.drives()) {
      drive(world, sharded);
      sharded.close();
    } else {
      sharded.follow();
    }
    if (after) after(world, sharded);
  });
}

std::vector<GeneratedText> served_alone(const model::DecoderShape& shape, const model::GenerateOptions& options) {
  const auto model = model::make_decoder(shape);
  const model::FlatWeights weights(model->layout(), served_weights(*model));
  model::Buffers buffers = model->make_buffers(at::kFloat);
  return model::generate(*model, weights, buffers, served_requests(), options);
}

void expect_equal_texts(const std::vector<GeneratedText>& found, const std::vector<GeneratedText>& expected, const std::string& where) {
  ASSERT_EQ(found.size(), expected.size()) << where;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].ids, expected[i].ids) << where << ", request " << i;
    ASSERT_EQ(found[i].log_probabilities.size(), expected[i].log_probabilities.size()) << where;
    for (size_t t = 0; t < found[i].ids.size(); ++t)
      EXPECT_NEAR(found[i].log_probabilities[t], expected[i].log_probabilities[t], 1e-4) << where << ", token " << t;
  }
}

void expect_texts_of_one_rank(const std::string& family, int64_t top_k, const std::string& mesh) {
  const model::DecoderShape shape = shape_with_experts(family, top_k);
  const model::GenerateOptions greedy{.tokens = 5, .length_max = shape.length, .sampling = {.temperature = 0}};
  const model::GenerateOptions drawn{
      .tokens = 4, .length_max = shape.length, .vocab = 29, .sampling = {.temperature = 1.3, .top_k = 0}, .stops = {7}};
  const int ep = mesh::parse_mesh(mesh).extent("ep");
  for (const ExpertFlow flow : {ExpertFlow::ep, ExpertFlow::exflow}) {
    ServedModel served{.shape = shape, .mesh = mesh, .flow = flow};
    if (flow == ExpertFlow::exflow) served.tables = shuffled_tables(shape, ep, 3);
    const std::string where = fmt::format("{}, top {}, {}, {}", family, top_k, mesh, flow == ExpertFlow::ep ? "ep" : "exflow");
    serve(served, {}, [&](comm::World&, ShardedGenerator& sharded) {
      expect_equal_texts(sharded.generate(served_requests(), greedy, {}), served_alone(shape, greedy), where + ", greedy");
      expect_equal_texts(sharded.generate(served_requests(), drawn, {}), served_alone(shape, drawn), where + ", drawn");
      EXPECT_TRUE(sharded.generate({}, greedy).empty());
    });
  }
}

class ServedFamilies : public testing::TestWithParam<std::string> {};

TEST_P(ServedFamilies, GiveTheTokensOfOneRankAlongEp) {
  for (const char* mesh : {"ep=2", "ep=4"})
    for (const int64_t top_k : {1, 2}) expect_texts_of_one_rank(GetParam(), top_k, mesh);
}

INSTANTIATE_TEST_SUITE_P(All, ServedFamilies, testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "olmoe"),
                         [](const auto& test) { return test.param; });

TEST(ExpertGeneration, GivesTheTokensOfOneRankAlongTpAndPpToo) {
  for (const char* mesh : {"tp=2,ep=2", "pp=3,ep=2", "pp=2,tp=2,ep=2"}) expect_texts_of_one_rank("qwen3_moe", 2, mesh);
}

TEST(ExpertGeneration, PlacesUnevenExpertsInTheFlowEp) {
  model::DecoderShape shape = shape_with_experts("qwen3_moe", 2);
  shape.experts.count = 5;
  const model::GenerateOptions greedy{.tokens = 6, .length_max = shape.length, .sampling = {.temperature = 0}};
  serve({.shape = shape, .mesh = "ep=3"}, {}, [&](comm::World&, ShardedGenerator& sharded) {
    expect_equal_texts(sharded.generate(served_requests(), greedy, {}), served_alone(shape, greedy), "5 experts on 3 ranks");
  });
}

// Virtual milliseconds of a decode step of `layers` layers over links of 10 ms.
double step_ms(ExpertFlow flow, int64_t top_k, int64_t layers) {
  model::DecoderShape shape = shape_with_experts("mixtral", top_k);
  shape.layers = layers;
  harness::Options slow;
  slow.link.latency = std::chrono::milliseconds(10);
  slow.link.jitter = 0;
  double ms = 0;
  serve({.shape = shape, .mesh = "ep=4", .flow = flow}, slow, [&](comm::World& world, ShardedGenerator& sharded) {
    std::vector<std::chrono::nanoseconds> at;
    sharded.generate(served_requests(), {.tokens = 5, .length_max = 50, .sampling = {.temperature = 0}}, [&](int64_t request, int32_t) {
      if (request == 0) at.push_back(world.clock().now());
      return true;
    });
    ms = std::chrono::duration<double, std::milli>(at.back() - at[1]).count() / 3;  // after the prompts
  });
  return ms;
}

TEST(ExpertGeneration, TakesOneTripALayerInExflowAndTwoInEp) {
  // Beside the layers: the command and the logits.
  EXPECT_NEAR(step_ms(ExpertFlow::exflow, 1, 4), (4 + 2) * 10, 1);
  EXPECT_NEAR(step_ms(ExpertFlow::ep, 1, 4), (8 + 2) * 10, 1);
  EXPECT_NEAR(step_ms(ExpertFlow::exflow, 1, 6), (6 + 2) * 10, 1);
  EXPECT_NEAR(step_ms(ExpertFlow::exflow, 2, 4), (8 + 2) * 10, 1);
}

TEST(ExpertGeneration, CountsTheRowsThatMove) {
  const model::DecoderShape shape = shape_with_experts("mixtral", 1);
  std::mutex mutex;
  int64_t rows = 0, moved = 0;
  serve(
      {.shape = shape, .mesh = "ep=2", .flow = ExpertFlow::exflow}, {},
      [&](comm::World&, ShardedGenerator& sharded) {
        sharded.generate(served_requests(), {.tokens = 9, .length_max = 50, .sampling = {.temperature = 0}}, {});
      },
      [&](comm::World&, ShardedGenerator& sharded) {
        const std::lock_guard lock(mutex);
        rows += sharded.expert_traffic().rows, moved += sharded.expert_traffic().moved;
      });
  EXPECT_EQ(rows, 6 * 8 * 3);  // sequences, decode steps, layers
  EXPECT_GT(moved, 0);
  EXPECT_LT(moved, rows);
}

TEST(ExpertGeneration, RefusesTablesAndModelsThatDoNotFit) {
  const auto refused = [](const model::DecoderShape& shape, const char* mesh, const ExpertTables& tables) {
    return base::message_of([&] { generation_plan(mesh::parse_mesh(mesh), *model::make_decoder(shape), tables); });
  };
  model::DecoderShape dense = shape_with_experts("mixtral", 2);
  dense.family = "llama", dense.experts = {};
  EXPECT_EQ(refused(dense, "ep=2", {}), "experts lie along ep, and the model has none; use tp or pp (--mesh ep=2)");
  const model::DecoderShape shape = shape_with_experts("mixtral", 2);
  EXPECT_EQ(refused(shape, "ep=2", ExpertTables(2, mesh::even_ragged(0, 8, 2))),
            "a placement of experts for 2 layers: the model has more (--mesh ep=2)");
  EXPECT_EQ(refused(shape, "ep=2", ExpertTables(4, mesh::even_ragged(0, 8, 2))),
            "a placement of experts for 4 layers: the model has 3 (--mesh ep=2)");
}

std::vector<at::Tensor> parts_from(int rank, int ranks) {
  std::vector<at::Tensor> parts;
  for (int to = 0; to < ranks; ++to)
    parts.push_back((rank + 2 * to) % 3 == 0 ? at::Tensor() : at::full({rank * 100 + to + 1}, rank * 10 + to, at::kByte));
  return parts;
}

class RowMessagesOn : public testing::TestWithParam<harness::On> {};

TEST_P(RowMessagesOn, BringPartsOfUnknownSizes) {
  constexpr int kRanks = 4;
  harness::on_ranks(kRanks, {.on = GetParam()}, [&](comm::World& world) {
    comm::Group& group = world.group(world.everyone().ranks(), "rows");
    for (int round = 0; round < 3; ++round) {
      RowMessages messages(group, parts_from(world.rank(), kRanks), comm::Purpose::activation, "rows");
      const std::vector<at::Tensor> arrived = messages.receive();
      ASSERT_EQ(arrived.size(), static_cast<size_t>(kRanks));
      for (int from = 0; from < kRanks; ++from) {
        const at::Tensor sent = parts_from(from, kRanks)[static_cast<size_t>(world.rank())], &got = arrived[static_cast<size_t>(from)];
        ASSERT_EQ(got.numel(), sent.defined() ? sent.numel() : 0) << from << " to " << world.rank();
        if (sent.defined()) {
          EXPECT_TRUE(at::equal(got, sent)) << from << " to " << world.rank();
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, RowMessagesOn, testing::Values(harness::On::local, harness::On::net),
                         [](const auto& test) { return harness::name(test.param); });

}  // namespace
}  // namespace cairn::parallel
