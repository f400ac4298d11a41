// Graphs made from cards, run: they compute what the model computes, and placed over ranks they still do, with the bytes that were
// promised.
#include <gtest/gtest.h>

#include "expect_right.h"
#include "model/decoder/decoder.h"
#include "model/model.h"
#include "planner/graph/described_models.h"
#include "planner/graph/example_graphs.h"
#include "planner/sbp/infer.h"
#include "planner/tensor_parallel/auto_tp.h"

namespace cairn::planner {
namespace {

model::DecoderShape small_of(const std::string& family) {
  model::DecoderShape shape{.vocab = 22,
                            .embed = 16,
                            .layers = 2,
                            .heads = 4,
                            .kv_heads = family == "gpt2" ? 4 : 2,
                            .head_dim = 4,
                            .mlp = 20,
                            .length = 6,
                            .tied = family == "gpt2",
                            .family = family};
  shape.qkv_bias = family != "llama";
  shape.out_bias = shape.mlp_bias = family == "gpt2";
  return shape;
}

TEST(CardGraphs, ComputeWhatTheModelDoes) {
  for (const std::string family : {"llama", "qwen2", "gpt2"}) {
    const auto model = model::make_decoder(small_of(family));
    const OpGraph graph = in_double(graph_of(describe(*model), {.batch = 3, .length = 6}));
    const LocalTensors whole = example_values(graph);
    Boxing boxing(mesh::parse_mesh("dp=1"), {});
    const PlacedGraph alone = infer(graph, boxing);
    double loss = 0;
    harness::on_ranks(1, [&](comm::World& world) { loss = execute(world, alone, whole).result.item<double>(); });

    const mesh::FlatLayout layout = model->layout();
    const at::Tensor flat = at::empty({layout.elements}, at::kDouble);
    for (size_t i = 0; i < model->parameters().size(); ++i)
      layout.view(flat, {static_cast<int32_t>(i)}).copy_(whole.at(model->parameters()[i].name));
    const model::FlatWeights weights(layout, flat);
    model::Buffers buffers = model->make_buffers(at::TensorOptions().dtype(at::kDouble));
    const mesh::Axes axes;
    const model::Call call{.weights = weights, .buffers = buffers, .axes = axes};
    model::Values values;
    values.put("tokens", whole.at("tokens"));
    for (const auto& block : model->blocks()) block->plain(values, call);
    const at::Tensor logits = values.get("logits");
    const double expected = at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), whole.at("targets").reshape({-1})).item<double>();
    EXPECT_NEAR(loss, expected, 1e-9) << family;
  }
}

TEST(CardGraphs, GiveTheSameAnswerOverRanksAndSendWhatTheyPromise) {
  const PassShape pass{.batch = 4, .length = 6};
  std::vector<std::pair<std::string, OpGraph>> graphs;
  for (const std::string family : {"llama", "gpt2"})
    graphs.emplace_back(family, in_double(graph_of(describe(*model::make_decoder(small_of(family))), pass)));
  graphs.emplace_back("t5", in_double(graph_of(t5({.vocab = 22, .embed = 16, .layers = 1, .heads = 4, .head_dim = 4, .mlp = 20}), pass)));
  graphs.emplace_back("opt", in_double(graph_of(opt({.vocab = 22, .embed = 16, .layers = 1, .heads = 4, .mlp = 20, .length = 6}), pass)));
  for (const auto& [name, graph] : graphs)
    for (const std::string text : {"tp=2", "dp=2,tp=2", "tp=4"})
      for (const bool rules : {true, false}) {
        const mesh::Mesh mesh = mesh::parse_mesh(text);
        Boxing boxing(mesh, {});
        SCOPED_TRACE(name + " " + text + (rules ? " by rules" : " free"));
        expect_right(infer(graph, boxing, {.fixed = rules ? sbp_by_rules(graph, mesh) : std::map<std::string, NdSbp>{}}));
      }
}

}  // namespace
}  // namespace cairn::planner
