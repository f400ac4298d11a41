#include "planner/sbp/signatures.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "planner/graph/example_graphs.h"
#include "planner/sbp/boxing.h"

namespace cairn::planner {
namespace {

// "S0,B->S0" for each signature.
std::set<std::string> ways(const OpGraph& graph, const GraphOp& op, int ranks = 2) {
  std::set<std::string> all;
  for (const SbpSignature& signature : signatures(graph, op, ranks)) {
    std::string text;
    for (const Sbp& sbp : signature.inputs) text += (text.empty() ? "" : ",") + to_string(sbp);
    all.insert(text + "->" + to_string(signature.output));
  }
  return all;
}

std::set<std::string> ways_of_one(GraphOp op, const std::vector<std::vector<int64_t>>& shapes, int ranks = 2) {
  OpGraph graph;
  for (size_t i = 0; i + 1 < shapes.size(); ++i)
    op.inputs.push_back(graph.add({.name = std::to_string(i), .shape = shapes[i], .kind = GraphTensor::Kind::input}));
  op.name = "op";
  graph.add(op, {.name = "out", .shape = shapes.back()});
  check(graph);
  return ways(graph, graph.ops[0], ranks);
}

using Set = std::set<std::string>;

TEST(Signatures, AreThoseOfTheTable) {
  EXPECT_EQ(ways_of_one({.indices = "mk,kn->mn", .linear = GraphOp::Linear::each}, {{4, 6}, {6, 8}, {4, 8}}),
            (Set{"S0,B->S0", "B,S1->S1", "S1,S0->P", "P,B->P", "B,P->P", "B,B->B"}));
  EXPECT_EQ(ways_of_one({.indices = "imk,ikn->imn", .linear = GraphOp::Linear::each}, {{2, 4, 6}, {2, 6, 8}, {2, 4, 8}}),
            (Set{"S0,S0->S0", "S1,B->S1", "B,S2->S2", "S2,S1->P", "P,B->P", "B,P->P", "B,B->B"}));
  EXPECT_EQ(ways_of_one({.indices = "ab->ab"}, {{4, 6}, {4, 6}}), (Set{"S0->S0", "S1->S1", "B->B"}));
  EXPECT_EQ(ways_of_one({.indices = "ab,ab->ab", .linear = GraphOp::Linear::jointly}, {{4, 6}, {4, 6}, {4, 6}}),
            (Set{"S0,S0->S0", "S1,S1->S1", "P,P->P", "B,B->B"}));
  EXPECT_EQ(ways_of_one({.indices = "ab,ab->ab", .linear = GraphOp::Linear::each}, {{4, 6}, {4, 6}, {4, 6}}),
            (Set{"S0,S0->S0", "S1,S1->S1", "P,B->P", "B,P->P", "B,B->B"}));
  EXPECT_EQ(ways_of_one({.indices = "ab->ba", .linear = GraphOp::Linear::each}, {{4, 6}, {6, 4}}),
            (Set{"S0->S1", "S1->S0", "P->P", "B->B"}));
  EXPECT_EQ(ways_of_one({.indices = "mn,n->mn"}, {{4, 6}, {6}, {4, 6}}), (Set{"S0,B->S0", "S1,S0->S1", "B,B->B"}));
  EXPECT_EQ(ways_of_one({.indices = "ab->ab", .whole = "b"}, {{4, 6}, {4, 6}}), (Set{"S0->S0", "B->B"}));
  EXPECT_EQ(ways_of_one({.indices = "ab->a", .linear = GraphOp::Linear::each}, {{4, 6}, {4}}), (Set{"S0->S0", "S1->P", "P->P", "B->B"}));
  EXPECT_EQ(ways_of_one({.indices = "ve,t->te"}, {{9, 6}, {5}, {5, 6}}), (Set{"B,S0->S0", "S0,B->P", "S1,B->S1", "B,B->B"}));
  EXPECT_EQ(ways_of_one({.indices = "tv,t->t", .inner = "v"}, {{4, 9}, {4}, {4}}), (Set{"S0,S0->S0", "S1,B->P", "B,B->B"}));
}

TEST(Signatures, LeaveOutDimsShorterThanTheRanksAreMany) {
  EXPECT_EQ(ways_of_one({.indices = "mk,kn->mn", .linear = GraphOp::Linear::each}, {{2, 6}, {6, 8}, {2, 8}}, 3),
            (Set{"B,S1->S1", "S1,S0->P", "P,B->P", "B,P->P", "B,B->B"}));
  EXPECT_EQ(ways_of_one({.indices = "ab->ab"}, {{4, 6}, {4, 6}}, 1), (Set{"B->B"}));
}

TEST(Signatures, KeepHeadsTogether) {
  const GraphTensor q{.name = "q", .shape = {12, 4}, .grains = {{.unit = 2, .group = 2}, {}}};  // 6 heads in 3 groups
  const auto three = how_of(q, split_of(0), 3), two = how_of(q, split_of(0), 2);
  EXPECT_EQ(std::get<mesh::Split>(*two).pieces, (std::vector<std::vector<mesh::Interval>>{{{0, 8}}, {{8, 12}}}));
  EXPECT_EQ(std::get<mesh::Split>(*three).pieces, (std::vector<std::vector<mesh::Interval>>{{{0, 4}}, {{4, 8}}, {{8, 12}}}));
  EXPECT_TRUE(how_of(q, split_of(0), 6));
  EXPECT_FALSE(how_of(q, split_of(0), 4));  // neither whole groups nor even heads
  const GraphTensor k{.name = "k", .shape = {4, 4}, .grains = {{.unit = 2, .shared = true}, {}}};
  EXPECT_EQ(std::get<mesh::Ragged>(*how_of(k, split_of(0), 4)).owners, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  const GraphTensor stacked{.name = "qkv", .shape = {16}, .grains = {{.unit = 2, .sections = {8, 4, 4}}}};
  EXPECT_EQ(std::get<mesh::Split>(*how_of(stacked, split_of(0), 2)).pieces,
            (std::vector<std::vector<mesh::Interval>>{{{0, 4}, {8, 10}, {12, 14}}, {{4, 8}, {10, 12}, {14, 16}}}));
  EXPECT_FALSE(how_of(stacked, split_of(0), 3));
}

TEST(Boxing, CostsWhatTheTableSays) {
  for (const int p : {2, 3, 4}) {
    Boxing boxing(mesh::parse_mesh(fmt::format("tp={}", p)), {});
    const GraphTensor t{.name = "t", .shape = {12, 24}};
    const int64_t bytes = 12 * 24 * 4;
    const auto cost = [&](const char* from, const char* to) { return boxing.forward(t, {parse_sbp(from)}, {parse_sbp(to)}).bytes; };
    EXPECT_EQ(cost("S0", "S0"), 0);
    EXPECT_EQ(cost("S0", "S1"), bytes * (p - 1) / p);
    EXPECT_EQ(cost("S0", "B"), bytes * (p - 1));
    EXPECT_EQ(cost("B", "S0"), 0);
    EXPECT_EQ(cost("B", "P"), 0);
    EXPECT_EQ(cost("P", "S1"), bytes * (p - 1));
    EXPECT_EQ(cost("P", "B"), bytes * 2 * (p - 1));
    EXPECT_EQ(cost("S0", "P"), 0);
  }
}

TEST(Boxing, IsNotMisledWhereOneDimIsCutTwice) {
  // Slicing what is there already costs nothing; (B, S0) -> (S0, S0) does: the second axis cuts what the first has left.
  Boxing boxing(mesh::parse_mesh("dp=2,tp=2"), {});
  const GraphTensor t{.name = "t", .shape = {8, 4}};
  const int64_t bytes = 8 * 4 * 4;
  EXPECT_EQ(boxing.forward(t, {split_of(0), kReplicate}, {split_of(0), split_of(0)}).bytes, 0);
  EXPECT_EQ(boxing.forward(t, {kReplicate, split_of(0)}, {split_of(0), split_of(0)}).bytes, bytes / 2);
}

TEST(Boxing, CountsSecondsWhereLinksAreKnown) {
  Boxing boxing(mesh::parse_mesh("dp=2,tp=2"), {.links = {{"dp", {0.1, 1e3}}, {"tp", {0.001, 1e6}}}});
  const GraphTensor t{.name = "t", .shape = {10, 100}};  // 4,000 bytes
  EXPECT_NEAR(boxing.forward(t, {kReplicate, split_of(0)}, {kReplicate, kReplicate}).cost, 0.001 + 2000 / 1e6, 1e-9);
  EXPECT_NEAR(boxing.forward(t, {split_of(0), kReplicate}, {kReplicate, kReplicate}).cost, 0.1 + 2000 / 1e3, 1e-9);
}

TEST(OpGraph, RefusesWhatDoesNotFit) {
  const auto refusal = [](OpGraph graph) {
    try {
      check(graph);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  OpGraph good = mlp_graph(4, 3, 6, 2);
  EXPECT_EQ(refusal(good), "");
  OpGraph bad = good;
  bad.ops[0].indices = "bk,nj->bn";
  EXPECT_EQ(refusal(bad), "");  // a product that sums over both is odd but right
  bad.ops[0].indices = "bk,kn->bn";
  EXPECT_NE(refusal(bad).find("up: index k has 3 values in one tensor and 6 in w1"), std::string::npos) << refusal(bad);
  bad = good;
  std::swap(bad.ops[0], bad.ops[1]);
  EXPECT_NE(refusal(bad).find("up_bias: reads up before it is made"), std::string::npos) << refusal(bad);
  bad = good;
  bad.tensors[1].name = "x";
  EXPECT_NE(refusal(bad).find("two tensors are called x"), std::string::npos);
}

}  // namespace
}  // namespace cairn::planner
