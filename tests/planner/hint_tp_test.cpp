#include <gtest/gtest.h>

#include "planner/tensor_parallel/auto_tp.h"

namespace cairn::planner {
namespace {

std::string hinted(const std::vector<NamedShape>& parameters, int ranks) {
  std::string text;
  for (const RuledPlacement& one : hint_tp(parameters, ranks)) {
    const auto* split = std::get_if<mesh::Split>(&one.how);
    text += one.parameter.substr(one.parameter.find_last_of("./", one.parameter.find_last_of("./") - 1) + 1) +
            (split ? " S" + std::to_string(split->dim) : " B") + ", " + one.rule + "\n";
  }
  return text;
}

TEST(HintTp, KnowsTheNamesOfALlama) {
  EXPECT_EQ(hinted({{"model.embed_tokens.weight", {96, 32}},
                    {"model.layers.0.self_attn.q_proj.weight", {32, 32}},
                    {"model.layers.0.self_attn.k_proj.weight", {16, 32}},
                    {"model.layers.0.self_attn.o_proj.weight", {32, 32}},
                    {"model.layers.0.mlp.gate_proj.weight", {48, 32}},
                    {"model.layers.0.mlp.down_proj.weight", {32, 48}},
                    {"model.norm.weight", {32}},
                    {"lm_head.weight", {96, 32}}},
                   2),
            "embed_tokens.weight S0, hint: embedding\n"
            "q_proj.weight S0, hint: query, key or value\n"
            "k_proj.weight S0, hint: query, key or value\n"
            "o_proj.weight S1, hint: output of an attention\n"
            "gate_proj.weight S0, hint: first of a pair\n"
            "down_proj.weight S1, hint: second of a pair\n"
            "norm.weight B, replicated: one dim\n"
            "lm_head.weight S0, hint: head\n");
}

TEST(HintTp, MirrorsKernels) {
  EXPECT_EQ(hinted({{"h/0/attn/q_proj/kernel", {32, 32}}, {"h/0/mlp/fc_in/kernel", {32, 64}}, {"h/0/mlp/fc_out/kernel", {64, 32}}}, 2),
            "q_proj/kernel S1, hint: query, key or value\n"
            "fc_in/kernel S1, hint: first of a pair\n"
            "fc_out/kernel S0, hint: second of a pair\n");
}

TEST(HintTp, TakesTurnsWhereNamesSayNothing) {
  EXPECT_EQ(hinted({{"a.weight", {8, 8}}, {"b.weight", {8, 8}}, {"c.weight", {8, 8}}}, 2),
            "a.weight S0, hint: in turn\nb.weight S1, hint: in turn\nc.weight S0, hint: in turn\n");
}

TEST(HintTp, SplitsOnlyWhatDividesInAllLayers) {
  EXPECT_EQ(hinted({{"l.0.mlp.up.weight", {8, 6}}, {"l.1.mlp.up.weight", {9, 6}}, {"l.0.mlp.down.weight", {5, 7}}}, 2),
            "up.weight S1, hint: first of a pair, the other dim is not divisible by 2\n"
            "up.weight S1, hint: first of a pair, the other dim is not divisible by 2\n"
            "down.weight B, replicated: no dim is divisible by 2\n");
}

}  // namespace
}  // namespace cairn::planner
