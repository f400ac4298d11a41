// A decoder whose width is split along tp, against the same decoder on one rank: losses and every gradient, in double.
#include <cmath>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/fill_normal.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/decoder/residual_stream.h"
#include "model/families/families.h"
#include "model/objective.h"
#include "model/some_experts.h"
#include "parallel/layout/model_shard.h"
#include "parallel/layout/tensor_split.h"
#include "parallel/pass.h"
#include "parallel/token_batch.h"

namespace cairn::parallel {
namespace {

struct TpCase {
  std::string name;
  model::DecoderShape shape;
  int ranks;
  model::AdapterShape lora = {};
};

// Weights away from the linear regime, where wrong derivatives hide.
at::Tensor weights_of(const model::Model& model) {
  const mesh::FlatLayout layout = model.layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kDouble);
  model::initialize_parameters(model, flat, base::Random(3));
  for (const mesh::NamedTensor& one : layout.views(flat))
    if (one.name.ends_with(".bias") || one.name.ends_with(".lora_B.weight") || one.name.ends_with(".pool_b"))
      kernels::fill_normal(one.tensor.view({-1}), base::Random(4).for_name(one.name), 0, 0.03);
  return flat.mul_(10);
}

struct Found {
  at::Tensor loss, per_sample;
  mesh::NamedTensors gradients;  // of the whole parameters
};

Plan tensor_plan(const model::Model& model, int ranks) {
  Plan plan;
  plan.mesh.axes = {{"tp", ranks}};
  for (const model::Parameter& parameter : model.parameters()) plan.placements[parameter.name] = {{{"tp", tensor_split(parameter, ranks)}}};
  return plan;
}

// One pass on this rank of the world; the gradients are put together on every rank.
Found pass_on(comm::World& world, const TpCase& c, bool overlap = false) {
  const auto model = model::make_decoder(c.shape, c.lora);
  const Plan plan = tensor_plan(*model, world.size());
  const ModelShard shard = model_shard(*model, plan, world.rank());
  const mesh::FlatLayout whole_layout = model->layout();
  const at::Tensor whole = weights_of(*model), flat = at::empty({shard.layout.elements}, at::kDouble);
  std::vector<mesh::Placement> placements;
  for (size_t i = 0; i < shard.parameters.size(); ++i) {
    const mesh::ParamId id{static_cast<int32_t>(i)};
    shard.layout.view(flat, id).copy_(cut_out(whole_layout.view(whole, id), shard.parameters[i].local_shard));
    placements.push_back(plan.placements.at(model->parameters()[i].name));
  }
  const model::FlatWeights weights(shard.layout, flat, placements);
  mesh::FlatGradients sink(shard.layout, at::full({shard.layout.elements}, 99.0, at::kDouble), model->uses());
  sink.begin(1, nullptr);
  mesh::Axes axes;
  if (world.size() > 1) axes.put("tp", world.everyone());
  model::Buffers buffers = model->make_buffers(at::TensorOptions().dtype(at::kDouble));
  mesh::Batch batch = token_batch(3, 7, c.shape.vocab);
  batch.ids = at::arange(5, 8);
  batch.weights = at::linspace(0.5, 1.5, 3);
  const auto objective = model::make_next_token();
  const model::PassOptions options{.overlap = overlap, .draws_by_token = c.lora.dropout > 0};
  const model::Losses losses = execute({.model = *model,
                                        .at = weights,
                                        .buffers = buffers,
                                        .axes = axes,
                                        .batch = batch,
                                        .objective = *objective,
                                        .into = &sink,
                                        .weight = 1.0 / 17,
                                        .random = base::Random(6),
                                        .options = options});
  sink.finish();
  Found found{.loss = losses.sum, .per_sample = losses.per_sample, .gradients = {}};
  for (size_t i = 0; i < shard.parameters.size(); ++i) {
    at::Tensor together = at::zeros(model->parameters()[i].shape, at::kDouble);
    put_back(together, shard.parameters[i].local_shard, shard.layout.view(sink.flat(), {static_cast<int32_t>(i)}));
    world.everyone().all_reduce(together, comm::Reduce::sum, {comm::Purpose::gradient, "check"}).wait_host();
    found.gradients.push_back({model->parameters()[i].name, together});
  }
  return found;
}

class TensorParallel : public testing::TestWithParam<TpCase> {};

void expect_same(const TpCase& c, bool overlap) {
  Found alone;
  harness::on_ranks(1, [&](comm::World& world) { alone = pass_on(world, c); });
  harness::on_ranks(c.ranks, [&](comm::World& world) {
    const Found found = pass_on(world, c, overlap);
    EXPECT_NEAR(found.loss.item<double>(), alone.loss.item<double>(), 1e-11 * std::abs(alone.loss.item<double>()));
    EXPECT_LT((found.per_sample - alone.per_sample).abs().max().item<double>(), 1e-9);
    double largest = 0;
    for (const mesh::NamedTensor& one : alone.gradients) largest = std::max(largest, one.tensor.norm().item<double>());
    for (size_t i = 0; i < alone.gradients.size(); ++i) {
      const double apart = (found.gradients[i].tensor - alone.gradients[i].tensor).norm().item<double>();
      EXPECT_LT(apart, 1e-12 * largest + 1e-11 * alone.gradients[i].tensor.norm().item<double>()) << alone.gradients[i].name;
    }
  });
}

TEST_P(TensorParallel, GivesTheLossesAndGradientsOfOneRank) { expect_same(GetParam(), false); }
TEST_P(TensorParallel, GivesThemToWhereProductsOverlapMessages) { expect_same(GetParam(), true); }

// A gather and a sum of two ranks, each with a product of its own: how long both take where the link takes as long as the product.
double seconds_of_layer(bool overlap) {
  constexpr int64_t kTokens = 1000, kWidth = 256;
  constexpr double kProductS = 1e-3;                                     // of all tokens
  const double link_bytes_per_s = kTokens / 2 * kWidth * 4 / kProductS;  // half of them cross, each way
  comm::LocalOptions options;
  options.link.bytes_per_s = link_bytes_per_s;
  double seconds = 0;
  const auto ended = comm::LocalNetwork(2, options).run([&](comm::World& world) {
    mesh::Axes axes;
    axes.put("tp", world.everyone());
    model::Buffers buffers;
    const model::FlatWeights weights({}, at::empty({0}));
    const model::PassOptions pass_options{.overlap = overlap};
    const model::Call call{.weights = weights, .buffers = buffers, .axes = axes, .options = pass_options};
    const auto product = [&](const at::Tensor&, int64_t, int64_t count) {
      world.timer(world.clock().now() + std::chrono::nanoseconds(static_cast<int64_t>(1e9 * kProductS * count / kTokens))).wait_host();
    };
    const at::Tensor all = model::gather_tokens(at::ones({kTokens / 2, kWidth}), {1, kTokens}, call, "in", product);
    model::reduce_scatter_tokens(all, call, "out", product);
    if (world.rank() == 0) seconds = base::seconds(world.clock().now());
  });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
  return seconds;
}

TEST(TensorParallelOverlap, HidesMessagesBehindProducts) {
  const double apart = seconds_of_layer(false), together = seconds_of_layer(true);
  EXPECT_GT(apart / together, 1.15) << apart << " s and " << together << " s";
}

// Terms in bf16 are added in fp32 and rounded once, in rank order, as by a reduce-scatter; the rows of each rank are made on their own.
TEST(TensorParallelOverlap, SumsBf16AsAReduceScatterDoes) {
  constexpr int64_t kTokens = 11, kWidth = 5;
  for (const int ranks : {2, 3, 5}) {
    harness::on_ranks(ranks, [&](comm::World& world) {
      mesh::Axes axes;
      axes.put("tp", world.everyone());
      model::Buffers buffers;
      const model::FlatWeights weights({}, at::empty({0}));
      const at::Tensor values = at::empty({kTokens, kWidth});
      kernels::fill_normal(values.view({-1}), base::Random(3).for_index(static_cast<uint64_t>(world.rank())), 0, 1);
      const auto summed = [&](bool overlap, int& calls) {
        const model::PassOptions options{.overlap = overlap};
        const model::Call call{.weights = weights, .buffers = buffers, .axes = axes, .options = options};
        const auto make = [&](const at::Tensor& terms, int64_t begin, int64_t count) {
          terms.narrow(0, begin, count).copy_(values.narrow(0, begin, count));
          ++calls;
        };
        return model::reduce_scatter_tokens(at::empty({kTokens, kWidth}, at::kBFloat16), call, "out", make);
      };
      int apart = 0, together = 0;
      const at::Tensor expected = summed(false, apart), found = summed(true, together);
      EXPECT_EQ(found.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(at::equal(found, expected));
      EXPECT_EQ(apart, 1);
      EXPECT_EQ(together, ranks);
    });
  }
}

model::DecoderShape shape_of(const std::string& kind, int64_t heads, int64_t kv_heads) {
  const model::Family& of = model::family(kind);
  return model::with_experts({.vocab = 23,
                              .embed = 12,
                              .layers = 2,
                              .heads = heads,
                              .kv_heads = kind == "gpt2" ? heads : kv_heads,
                              .head_dim = 4,
                              .mlp = 14,
                              .length = 11,
                              .tied = kind != "mistral",
                              .family = kind,
                              .qkv_bias = of.qkv_bias,
                              .out_bias = of.out_bias,
                              .mlp_bias = of.mlp_bias});
}

std::vector<TpCase> tp_cases() {
  std::vector<TpCase> cases;
  for (const std::string& kind : model::family_names())
    if (!model::family(kind).qk_norm_together) cases.push_back({kind + "_on_2", shape_of(kind, 4, 2), 2});  // else it is refused
  cases.push_back({"uneven_heads_on_3", shape_of("llama", 8, 4), 3});
  cases.push_back({"gpt2_on_3", shape_of("gpt2", 5, 5), 3});
  cases.push_back({"fewer_key_heads_than_ranks", shape_of("llama", 4, 2), 4});
  cases.push_back({"one_key_head_on_3", shape_of("qwen3", 6, 1), 3});
  cases.push_back(
      {"adapters", shape_of("llama", 4, 2), 2, {.rank = 2, .alpha = 3, .targets = {"q_proj", "v_proj", "down_proj", "o_proj"}}});
  // Masks of what adapters read, also where each rank has a part of the columns.
  model::AdapterShape dropped{.rank = 2, .alpha = 3, .targets = {"q_proj", "up_proj", "down_proj", "o_proj"}, .dropout = 0.3};
  cases.push_back({"adapters_with_dropout", shape_of("llama", 4, 2), 2, dropped});
  dropped.kind = model::AdapterKind::mos, dropped.rank = 3, dropped.equivalent_rank = 2, dropped.private_rank = 1, dropped.shards = 2;
  cases.push_back({"pools_with_dropout_on_3", shape_of("llama", 8, 4), 3, dropped});
  dropped.targets = {"k_proj", "v_proj"};
  cases.push_back({"pools_where_ranks_share_key_heads", shape_of("llama", 4, 2), 4, dropped});
  cases.push_back({"gpt2_adapters", shape_of("gpt2", 4, 4), 2, {.rank = 2, .alpha = 3, .targets = {"c_fc", "c_proj"}}});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Cases, TensorParallel, testing::ValuesIn(tp_cases()), [](const auto& c) { return c.param.name; });

TEST(TensorSplit, RefusesMoreRanksThanHeadsAndNamesTheNearest) {
  const auto model = model::make_decoder(shape_of("llama", 6, 3));
  try {
    check_tensor_split(*model, 5);
    FAIL() << "5 ranks were accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("mesh.tp = 5: 6 query and 3 key heads"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("the next smaller is 3"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(check_tensor_split(*model, 6));
}

}  // namespace
}  // namespace cairn::parallel
