#include "planner/sbp/infer.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_right.h"
#include "harness/ranks.h"
#include "planner/graph/described_models.h"
#include "planner/graph/example_graphs.h"
#include "planner/sbp/choices.h"
#include "planner/sbp/execute.h"

namespace cairn::planner {
namespace {

NdSbp nd_sbp(const std::string& text) {
  NdSbp all;
  for (size_t i = 0; i < text.size();) {
    const size_t length = text[i] == 'S' ? 2 : 1;
    all.push_back(parse_sbp(text.substr(i, length)));
    i += length;
  }
  return all;
}

int64_t count_moves(const PlacedGraph& placed, Move::When when, bool of_terms) {
  return std::count_if(placed.moves.begin(), placed.moves.end(), [&](const Move& move) {
    const NdSbp from = when == Move::When::backward ? dual(move.to) : when == Move::When::gradient ? dual(move.from) : move.from;
    const NdSbp to = when == Move::When::backward ? dual(move.from) : move.to;
    bool reduces = false;
    for (size_t i = 0; i < from.size(); ++i)
      reduces = reduces || (from[i] == kPartial && to[i] != kPartial && placed.mesh.axes[i].size > 1);
    return move.when == when && move.bytes > 0 && (!of_terms || reduces);
  });
}

PlacedGraph inferred(const OpGraph& graph, const std::string& mesh, std::map<std::string, NdSbp> fixed,
                     InferOptions::By by = InferOptions::By::search) {
  Boxing boxing(mesh::parse_mesh(mesh), {});
  return infer(graph, boxing, {.by = by, .fixed = std::move(fixed)});
}

TEST(Infer, FindsDataParallelism) {
  for (const auto by : {InferOptions::By::greedy, InferOptions::By::search})
    for (const int ranks : {2, 3, 4}) {
      const NdSbp whole{kReplicate};
      const PlacedGraph placed =
          inferred(mlp_graph(7, 6, 10, 5), fmt::format("dp={}", ranks), {{"w1", whole}, {"b1", whole}, {"w2", whole}, {"b2", whole}}, by);
      EXPECT_EQ(count_moves(placed, Move::When::forward, false), 0) << describe(placed);
      EXPECT_EQ(count_moves(placed, Move::When::backward, false), 0);
      EXPECT_EQ(count_moves(placed, Move::When::gradient, true), 4);  // one for each weight
      for (const Move& move : placed.moves) EXPECT_EQ(move.by, "all_reduce");
      expect_right(placed);
    }
}

TEST(Infer, ReduceScattersWhereGradientsAreSharded) {
  Boxing boxing(mesh::parse_mesh("dp=2"), {});
  const NdSbp whole{kReplicate}, part{split_of(0)};
  const PlacedGraph placed =
      infer(mlp_graph(6, 4, 8, 4, false), boxing, {.fixed = {{"w1", whole}, {"w2", whole}}, .gradients = {{"w1", part}, {"w2", part}}});
  EXPECT_EQ(count_moves(placed, Move::When::gradient, true), 2);
  for (const Move& move : placed.moves) EXPECT_EQ(move.by, "reduce_scatter");
  expect_right(placed);
}

TEST(Infer, GathersParametersThatAreShardedAlongSamples) {
  const PlacedGraph placed = inferred(mlp_graph(64, 4, 8, 4, false), "dp=2", {{"w1", {split_of(0)}}, {"w2", {split_of(0)}}});
  EXPECT_EQ(count_moves(placed, Move::When::forward, false), 2) << describe(placed);  // gathered for the pass
  EXPECT_EQ(count_moves(placed, Move::When::backward, true), 2);                      // and their gradients reduced into parts
  EXPECT_EQ(count_moves(placed, Move::When::gradient, false), 0);
  expect_right(placed);
}

TEST(Infer, FindsTensorParallelism) {
  for (const auto by : {InferOptions::By::greedy, InferOptions::By::search})
    for (const int ranks : {2, 3, 4}) {
      const PlacedGraph placed =
          inferred(mlp_graph(7, 6, 10, 5, false), fmt::format("tp={}", ranks), {{"w1", {split_of(0)}}, {"w2", {split_of(1)}}}, by);
      EXPECT_EQ(count_moves(placed, Move::When::forward, true), 1) << describe(placed);
      EXPECT_EQ(count_moves(placed, Move::When::forward, false), 1);
      EXPECT_EQ(count_moves(placed, Move::When::gradient, false), 0);
      expect_right(placed);
    }
}

std::map<std::string, NdSbp> megatron(const OpGraph& graph, size_t axes, size_t tp) {
  std::map<std::string, NdSbp> fixed;
  for (const GraphTensor& tensor : graph.tensors) {
    if (tensor.kind != GraphTensor::Kind::parameter) continue;
    NdSbp all(axes);
    const std::string last = tensor.name.substr(tensor.name.find('.') + 1);
    if (last == "wq" || last == "wk" || last == "wv" || last == "wg" || last == "wu" || last == "table" || last == "head")
      all[tp] = split_of(0);
    if (last == "wo" || last == "wd") all[tp] = split_of(1);
    fixed[tensor.name] = all;
  }
  return fixed;
}

TEST(Infer, ReducesTwicePerTransformerBlockEachWay) {
  for (const std::string mesh : {"tp=2", "tp=4", "dp=2,tp=2"}) {
    const OpGraph graph =
        decoder_graph({.batch = 2, .length = 4, .heads = 4, .keys = 4, .width = 16, .mlp = 160, .layers = 3, .vocab = 100});
    const size_t axes = mesh::parse_mesh(mesh).axes.size();
    const PlacedGraph placed = inferred(graph, mesh, megatron(graph, axes, axes - 1));
    // Around the layers: the lookup's sum; on the way back the head's.
    EXPECT_EQ(count_moves(placed, Move::When::forward, true), 1 + 2 * 3) << mesh << describe(placed);
    EXPECT_EQ(count_moves(placed, Move::When::backward, true), 1 + 2 * 3) << mesh << describe(placed);
  }
}

TEST(Infer, GivesTheAnswerOfOneProcessWhateverTheLayout) {
  for (const std::string mesh : {"dp=2", "tp=2", "tp=3", "dp=2,tp=2", "dp=2,tp=3", "dp=2,shard=2"})
    for (const auto by : {InferOptions::By::greedy, InferOptions::By::search}) {
      const OpGraph graph = decoder_graph({.batch = 5, .length = 7, .heads = 6, .keys = 3, .layers = 1});
      const size_t axes = mesh::parse_mesh(mesh).axes.size();
      const bool tp = mesh.find("tp") != std::string::npos;
      expect_right(inferred(graph, mesh, tp ? megatron(graph, axes, axes - 1) : std::map<std::string, NdSbp>{}, by));
    }
}

TEST(Infer, SharesKeyHeadsWhereRanksAreMore) {
  const OpGraph graph = decoder_graph({.batch = 2, .length = 5, .heads = 4, .keys = 2, .layers = 1});
  expect_right(inferred(graph, "tp=4", megatron(graph, 1, 0)));
}

// Placements at random: dear, but right.
TEST(Infer, IsRightForPlacementsThatNobodyWouldChoose) {
  const OpGraph graph = decoder_graph({.batch = 4, .length = 4, .heads = 4, .keys = 2, .layers = 1});
  uint64_t state = 7;
  const auto random = [&](size_t below) {
    return static_cast<size_t>((state = state * 6364136223846793005U + 1442695040888963407U) >> 33) % below;
  };
  for (int trial = 0; trial < 6; ++trial) {
    const mesh::Mesh mesh = mesh::parse_mesh("dp=2,tp=2");
    std::map<std::string, NdSbp> fixed;
    for (const GraphTensor& tensor : graph.tensors) {
      if (tensor.kind != GraphTensor::Kind::parameter) continue;
      NdSbp all;
      do {
        all.clear();
        for (int axis = 0; axis < 2; ++axis) {
          const size_t pick = random(tensor.shape.size() + 1);
          all.push_back(pick == tensor.shape.size() ? kReplicate : split_of(static_cast<int>(pick)));
        }
      } while (!fits(tensor, all, mesh));
      fixed[tensor.name] = all;
    }
    expect_right(inferred(graph, "dp=2,tp=2", fixed, trial % 2 == 0 ? InferOptions::By::greedy : InferOptions::By::search));
  }
}

TEST(Infer, IsAsCheapAsTheBestOfAllCombinations) {
  // Gathering activations is 8 times cheaper than gathering weights in the first, dearer in the second; the others lie between.
  const std::vector<std::vector<int64_t>> sizes{{4, 32, 32, 32}, {256, 8, 8, 8}, {32, 16, 64, 4}, {8, 64, 4, 64}};
  for (const auto& s : sizes)
    for (const auto& [first, second] : {std::pair{"S0", "S0"}, {"S1", "S1"}, {"S0", "S1"}, {"S1", "S0"}, {"B", "S0"}}) {
      const OpGraph graph = mlp_graph(s[0], s[1], s[2], s[3], false);
      Boxing boxing(mesh::parse_mesh("dp=4"), {});
      const InferOptions options{.fixed = {{"w1", nd_sbp(first)}, {"w2", nd_sbp(second)}}};
      const PlacedGraph placed = infer(graph, boxing, options);
      const double best = brute_force(make_problem(graph, boxing, options)).cost;
      EXPECT_LE(placed.cost, 1.05 * best) << s[0] << " rows, " << first << ", " << second << "\n" << describe(placed);
      expect_right(placed);
    }
}

TEST(Infer, ChoosesWhereNobodyHas) {
  // Many rows and small weights: data parallelism. One row and large weights: they stay where they are.
  const PlacedGraph many = inferred(mlp_graph(512, 4, 8, 4, false), "dp=2", {});
  EXPECT_EQ(many.tensors[static_cast<size_t>(many.graph.find("w1"))], NdSbp{kReplicate}) << describe(many);
  const PlacedGraph few = inferred(mlp_graph(2, 64, 128, 64, false), "dp=2", {});
  EXPECT_EQ(few.tensors[static_cast<size_t>(few.graph.find("w1"))].front().kind, Sbp::Kind::split) << describe(few);
  expect_right(many);
  expect_right(few);
}

TEST(Infer, PrefersFastLinks) {
  // The same graph on a mesh whose second axis is slow: what is moved is moved along the first.
  const OpGraph graph = mlp_graph(16, 16, 16, 16, false);
  const mesh::Mesh mesh = mesh::parse_mesh("dp=2,tp=2");
  for (const bool slow_dp : {true, false}) {
    const LinkCost slow{1e-3, 1e6}, fast{1e-6, 1e9};
    Boxing boxing(mesh, {.links = {{"dp", slow_dp ? slow : fast}, {"tp", slow_dp ? fast : slow}}});
    const PlacedGraph placed = infer(graph, boxing, {.sample_axes = {}});
    int64_t along[2] = {0, 0};
    for (const Move& move : placed.moves)
      for (size_t axis = 0; axis < 2; ++axis) along[axis] += move.from[axis] != move.to[axis] ? move.bytes : 0;
    EXPECT_LE(along[slow_dp ? 0 : 1], along[slow_dp ? 1 : 0]) << describe(placed);
  }
}

TEST(Infer, DecidesTheSameEveryTimeAndRanksCompare) {
  const OpGraph graph = decoder_graph({});
  const PlacedGraph a = inferred(graph, "dp=2,tp=2", {}), b = inferred(graph, "dp=2,tp=2", {});
  EXPECT_EQ(hash_of(a), hash_of(b));
  const harness::Run run = harness::on_ranks(2, {.expect_errors = true}, [](comm::World& world) {
    const OpGraph mlp = mlp_graph(4, 4, 4, 4, false);
    const Sbp how = world.rank() == 0 ? kReplicate : split_of(0);
    const PlacedGraph placed = inferred(mlp, "dp=2", {{"w1", {how}}, {"w2", {kReplicate}}});
    LocalTensors mine;
    for (const auto& [name, value] : example_values(mlp)) {
      const auto t = static_cast<size_t>(mlp.find(name));
      mine[name] = local_part(value, mlp.tensors[t], placed.tensors[t], placed.mesh, world.rank());
    }
    execute(world, placed, mine);
  });
  EXPECT_NE(std::string(run.error_on(0).what()).find("ranks 1 have another plan than rank 0"), std::string::npos) << run.error_on(0).what();
}

std::string infer_refusal(std::map<std::string, NdSbp> fixed) {
  try {
    inferred(mlp_graph(4, 3, 6, 2), "tp=4", std::move(fixed));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Infer, AnswersForManyAxesRanksAndLayers) {
  // More combinations than anyone could compare: it goes axis by axis, and on large meshes by estimates.
  expect_right(inferred(decoder_graph({.batch = 4, .length = 4, .heads = 4, .keys = 2, .layers = 2}), "island=2,dp=2,tp=2", {}));
  const OpGraph deep = decoder_graph({.batch = 64, .length = 16, .heads = 8, .keys = 4, .width = 8, .mlp = 96, .layers = 8, .vocab = 64});
  EXPECT_GT(inferred(deep, "island=2,dp=4,tp=2", {}).bytes, 0);
  EXPECT_GT(inferred(deep, "dp=64,tp=4", megatron(deep, 2, 1)).bytes, 0);
}

TEST(Boxing, EstimatesWhatItWouldPrice) {
  // The same changes on a mesh that is priced exactly and, by one rank too many along an axis of copies, on one that is estimated.
  const GraphTensor t{.name = "t", .shape = {64, 96}};
  Boxing exact(mesh::parse_mesh("dp=4,tp=4"), {}), estimated(mesh::parse_mesh("dp=8,tp=4"), {});
  for (const char* from : {"S0", "S1", "B", "P"})
    for (const char* to : {"S0", "S1", "B"}) {
      const NdSbp a{kReplicate, parse_sbp(from)}, b{kReplicate, parse_sbp(to)};
      EXPECT_NEAR(estimated.estimate(t, a, b, true), 2 * exact.estimate(t, a, b, true), 1e-6) << from << " -> " << to;
      EXPECT_NEAR(estimated.estimate(t, a, b, true), estimated.forward(t, a, b).cost + estimated.backward(t, a, b).cost, 1e-6);
    }
}

TEST(Infer, MovesNoImagesWhereSamplesAreSharded) {
  // Convolutions are operations of no known kind, but samples do not see each other.
  const OpGraph graph = graph_of(unet_block({}), {.batch = 4, .length = 16, .other_length = 5});
  std::map<std::string, NdSbp> fixed;
  for (const GraphTensor& tensor : graph.tensors)
    if (tensor.kind == GraphTensor::Kind::parameter) fixed[tensor.name] = {kReplicate};
  const PlacedGraph placed = inferred(graph, "dp=2", fixed);
  EXPECT_EQ(count_moves(placed, Move::When::forward, false), 0) << describe(placed);
  EXPECT_EQ(count_moves(placed, Move::When::backward, false), 0);
}

TEST(Infer, RefusesWhatCannotBe) {
  EXPECT_NE(infer_refusal({{"w11", {kReplicate}}}).find("did you mean \"w1\""), std::string::npos)
      << infer_refusal({{"w11", {kReplicate}}});
  EXPECT_NE(infer_refusal({{"w1", {split_of(2)}}}).find("the tensor has 2 dims"), std::string::npos);
  EXPECT_NE(infer_refusal({{"w1", {split_of(1)}}}).find("more parts than it has"), std::string::npos);
  EXPECT_NE(infer_refusal({{"w1", {kReplicate, kReplicate}}}).find("2 placements are given for the 1 axes"), std::string::npos);
  EXPECT_NE(infer_refusal({{"b1", {kPartial}}}).find("not linear in it"), std::string::npos) << infer_refusal({{"b1", {kPartial}}});
  EXPECT_THROW(parse_sbp("Q"), Error);
}

}  // namespace
}  // namespace cairn::planner
