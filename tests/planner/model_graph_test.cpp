#include "model/some_experts.h"
#include "planner/graph/model_graph.h"

#include <algorithm>
#include <cctype>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/classifier/classifier.h"
#include "model/classifier/cnn.h"
#include "model/decoder/decoder.h"
#include "model/families/families.h"
#include "planner/graph/described_models.h"
#include "planner/graph/describer.h"
#include "planner/sbp/signatures.h"

namespace cairn::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

model::DecoderShape small_decoder(const std::string& family) {
  const model::Family& f = model::family(family);
  return model::with_experts({.vocab = 50,
          .embed = 16,
          .layers = 1,
          .heads = 4,
          .kv_heads = family == "gpt2" ? 4 : 2,
          .head_dim = 4,
          .mlp = 24,
          .length = 8,
          .tied = true,
          .family = family,
          .qkv_bias = f.qkv_bias,
          .out_bias = f.out_bias,
          .mlp_bias = f.mlp_bias});
}

const GraphTensor& tensor_of(const OpGraph& graph, const std::string& name) {
  const int place = graph.find(name);
  EXPECT_GE(place, 0) << name;
  return graph.tensors[static_cast<size_t>(std::max(place, 0))];
}

const GraphOp& op_of(const OpGraph& graph, const std::string& name) {
  for (const GraphOp& op : graph.ops)
    if (op.name == name) return op;
  ADD_FAILURE() << "no operation " << name;
  return graph.ops.front();
}

TEST(ModelGraph, OfAQwen3HasEveryOperationOfIt) {
  const auto model = model::make_decoder(small_decoder("qwen3"));
  EXPECT_EQ(
      to_string(graph_of(describe(*model), {2, 8})),
      "embedding.lookup: lookup vn,bs->bsn of model.embed_tokens.weight [50, 16], tokens [2, 8]\n"
      "layers.0.attention.norm: norm bsn,n->bsn of hidden.0 [2, 8, 16], model.layers.0.input_layernorm.weight [16]\n"
      "layers.0.attention.qkv.0: product bsk,nk->bsn of layers.0.attention.norm [2, 8, 16], model.layers.0.self_attn.q_proj.weight [16, "
      "16]\n"
      "layers.0.attention.qkv.1: product bsk,nk->bsn of layers.0.attention.norm [2, 8, 16], model.layers.0.self_attn.k_proj.weight [8, "
      "16]\n"
      "layers.0.attention.qkv.2: product bsk,nk->bsn of layers.0.attention.norm [2, 8, 16], model.layers.0.self_attn.v_proj.weight [8, "
      "16]\n"
      "layers.0.attention.qk_norm.0: norm bsh,n->bsh of layers.0.attention.qkv.0 [2, 8, 16], model.layers.0.self_attn.q_norm.weight [4]\n"
      "layers.0.attention.qk_norm.1: norm bsh,n->bsh of layers.0.attention.qkv.1 [2, 8, 8], model.layers.0.self_attn.k_norm.weight [4]\n"
      "layers.0.attention.rotary.0: elementwise bsn->bsn of layers.0.attention.qk_norm.0 [2, 8, 16]\n"
      "layers.0.attention.rotary.1: elementwise bsn->bsn of layers.0.attention.qk_norm.1 [2, 8, 8]\n"
      "layers.0.attention.attention: attention bsh,bth,bth->bsh of layers.0.attention.rotary.0 [2, 8, 16], layers.0.attention.rotary.1 "
      "[2, 8, 8], layers.0.attention.qkv.2 [2, 8, 8]\n"
      "layers.0.attention.out: product bsk,nk->bsn of layers.0.attention.attention [2, 8, 16], model.layers.0.self_attn.o_proj.weight "
      "[16, 16]\n"
      "layers.0.attention.add: add bsn,bsn->bsn of layers.0.attention.out [2, 8, 16], hidden.0 [2, 8, 16]\n"
      "layers.0.mlp.norm: norm bsn,n->bsn of hidden.0.5 [2, 8, 16], model.layers.0.post_attention_layernorm.weight [16]\n"
      "layers.0.mlp.gate_up.0: product bsk,nk->bsn of layers.0.mlp.norm [2, 8, 16], model.layers.0.mlp.gate_proj.weight [24, 16]\n"
      "layers.0.mlp.gate_up.1: product bsk,nk->bsn of layers.0.mlp.norm [2, 8, 16], model.layers.0.mlp.up_proj.weight [24, 16]\n"
      "layers.0.mlp.swiglu: multiply bsn,bsn->bsn of layers.0.mlp.gate_up.0 [2, 8, 24], layers.0.mlp.gate_up.1 [2, 8, 24]\n"
      "layers.0.mlp.down: product bsk,nk->bsn of layers.0.mlp.swiglu [2, 8, 24], model.layers.0.mlp.down_proj.weight [16, 24]\n"
      "layers.0.mlp.add: add bsn,bsn->bsn of layers.0.mlp.down [2, 8, 16], hidden.0.5 [2, 8, 16]\n"
      "head.norm: norm bsn,n->bsn of hidden.1 [2, 8, 16], model.norm.weight [16]\n"
      "head.logits: product bsk,nk->bsn of head.norm [2, 8, 16], model.embed_tokens.weight [50, 16]\n"
      "cross_entropy: cross entropy bsv,bs->bs of logits [2, 8, 50], targets [2, 8]\n"
      "mean: mean bs-> of losses [2, 8]\n");
}

TEST(ModelGraph, OfAGpt2HasItsPositionsBiasesAndStackedHeads) {
  const auto model = model::make_decoder(small_decoder("gpt2"));
  const OpGraph graph = graph_of(describe(*model), {2, 8}, /*loss=*/false);
  const std::string text = to_string(graph);
  EXPECT_THAT(text, HasSubstr("embedding.positions: lookup vn,bs->bsn of transformer.wpe.weight [8, 16], positions [2, 8]\n"
                              "embedding.add: add bsn,bsn->bsn of embedding.lookup [2, 8, 16], embedding.positions [2, 8, 16]\n"));
  EXPECT_THAT(text, HasSubstr("layers.0.attention.qkv: product bsk,kn->bsn of layers.0.attention.norm [2, 8, 16], "
                              "transformer.h.0.attn.c_attn.weight [16, 48]\n"
                              "layers.0.attention.qkv.bias: bias bsn,n->bsn of layers.0.attention.qkv.product [2, 8, 48], "
                              "transformer.h.0.attn.c_attn.bias [48]\n"
                              "layers.0.attention.attention: attention bsh->bsh of layers.0.attention.qkv [2, 8, 48]\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("cross")));
  EXPECT_EQ(op_of(graph, "embedding.positions").detail, kByPosition);
  EXPECT_EQ(op_of(graph, "embedding.lookup").detail, "");
  EXPECT_EQ(op_of(graph, "layers.0.attention.norm").detail, "layer");
  const Grain stacked{.unit = 4, .sections = {16, 16, 16}};
  EXPECT_EQ(tensor_of(graph, "transformer.h.0.attn.c_attn.weight").grains[1], stacked);
  EXPECT_EQ(tensor_of(graph, "transformer.h.0.attn.c_attn.bias").grains[0], stacked);
  EXPECT_EQ(tensor_of(graph, "transformer.h.0.attn.c_proj.weight").grains[0], (Grain{.unit = 4}));
}

TEST(ModelGraph, HandsGrainsOfHeadsToWhatMakesAndReadsThem) {
  const auto model = model::make_decoder(small_decoder("qwen3"));
  const OpGraph graph = graph_of(describe(*model), {2, 8});
  const Grain queries{.unit = 4, .group = 2}, keys{.unit = 4, .shared = true};
  EXPECT_EQ(tensor_of(graph, "model.layers.0.self_attn.q_proj.weight").grains[0], queries);  // through a norm and a rotation
  EXPECT_EQ(tensor_of(graph, "model.layers.0.self_attn.k_proj.weight").grains[0], keys);
  EXPECT_EQ(tensor_of(graph, "model.layers.0.self_attn.v_proj.weight").grains[0], keys);
  EXPECT_EQ(tensor_of(graph, "model.layers.0.self_attn.o_proj.weight").grains[1], queries);
  EXPECT_EQ(tensor_of(graph, "model.layers.0.self_attn.o_proj.weight").grains[0], Grain{});
  EXPECT_TRUE(tensor_of(graph, "hidden.0").grains.empty());
  EXPECT_TRUE(tensor_of(graph, "model.layers.0.mlp.up_proj.weight").grains.empty());
}

TEST(ModelGraph, CostsWhatTheCardsSay) {
  for (const std::string& family : model::family_names()) {
    const auto model = model::make_decoder(small_decoder(family));
    const Description description = describe(*model);
    double expected = 0, found = 0;
    for (const model::Card& card : description.cards)
      for (const model::BlockOp& one : card.operations) expected += one.flops_per_token * 3 * 8 + one.flops_per_pair * 3 * (8 * 9 / 2);
    for (const GraphOp& op : graph_of(description, {3, 8}, /*loss=*/false).ops) found += op.flops;
    EXPECT_NEAR(found, expected, 1e-6 * expected) << family;
  }
}

TEST(ModelGraph, OfAdaptersHasAPairOfProductsBesideTheirOwn) {
  const auto model = model::make_decoder(small_decoder("qwen2"), {.rank = 2, .alpha = 4, .targets = {"v_proj"}});
  EXPECT_THAT(to_string(graph_of(describe(*model), {2, 8})),
              HasSubstr("layers.0.attention.qkv.2: product bsk,nk->bsn of layers.0.attention.norm [2, 8, 16], "
                        "model.layers.0.self_attn.v_proj.weight [8, 16]\n"
                        "layers.0.attention.qkv.2.adapter_a: product bsk,nk->bsn of layers.0.attention.norm [2, 8, 16], "
                        "model.layers.0.self_attn.v_proj.lora_A.weight [2, 16]\n"
                        "layers.0.attention.qkv.2.adapter_b: product bsk,nk->bsn of layers.0.attention.qkv.2.adapter_a [2, 8, 2], "
                        "model.layers.0.self_attn.v_proj.lora_B.weight [8, 2]\n"
                        "layers.0.attention.qkv.2.adapter_scale: scale bsn->bsn of layers.0.attention.qkv.2.adapter_b [2, 8, 8]\n"
                        "layers.0.attention.qkv.2.adapter_add: add bsn,bsn->bsn of layers.0.attention.qkv.2.product [2, 8, 8], "
                        "layers.0.attention.qkv.2.adapter_scale [2, 8, 8]\n"
                        "layers.0.attention.qkv.2.bias: bias bsn,n->bsn of layers.0.attention.qkv.2.adapted [2, 8, 8], "
                        "model.layers.0.self_attn.v_proj.bias [8]\n"));
}

TEST(ModelGraph, AddsBranchesAsTheyAreWired) {
  model::DecoderShape shape = small_decoder("llama");
  shape.residual = "parallel";
  const auto model = model::make_decoder(shape);
  EXPECT_THAT(
      to_string(graph_of(describe(*model), {2, 8})),
      HasSubstr("layers.0.mlp.add: add bsn,bsn,bsn->bsn of layers.0.mlp.down [2, 8, 16], terms.0 [2, 8, 16], hidden.0 [2, 8, 16]\n"));
}

TEST(ModelGraph, GivesEncoderAndDecoderLengthsOfTheirOwn) {
  const OpGraph graph = graph_of(t5({}), {.batch = 2, .length = 5, .other_length = 7});
  EXPECT_THAT(tensor_of(graph, "input_ids").shape, ElementsAre(2, 7));
  EXPECT_THAT(tensor_of(graph, "decoder_input_ids").shape, ElementsAre(2, 5));
  EXPECT_THAT(tensor_of(graph, "encoder.relative_positions").shape, ElementsAre(7, 7));
  EXPECT_THAT(tensor_of(graph, "decoder.bias").shape, ElementsAre(5, 5, 4));
  const GraphOp& across = op_of(graph, "decoder.block.0.layer.1.attention");
  EXPECT_EQ(across.indices, "bsh,bth,bth->bsh");
  EXPECT_THAT(graph.tensors[static_cast<size_t>(across.inputs[0])].shape, ElementsAre(2, 5, 32));
  EXPECT_THAT(graph.tensors[static_cast<size_t>(across.inputs[1])].shape, ElementsAre(2, 7, 32));
  EXPECT_EQ(across.flops, 4 * 32 * 2 * 5 * 7);
  EXPECT_EQ(op_of(graph, "decoder.block.1.layer.0.attention").indices, "bsh,bth,bth,sth->bsh");
  EXPECT_THAT(tensor_of(graph, "losses").shape, ElementsAre(2, 5));
}

TEST(ModelGraph, KeepsWhatItDoesNotKnowWhole) {
  const auto model = model::make_cnn({});
  const OpGraph graph = graph_of(describe(*model), {2, 4});
  const GraphOp& convolution = op_of(graph, "layers.0.convolution");
  EXPECT_EQ(convolution.kind, GraphOp::Kind::other);
  for (const char letter : convolution.indices)
    EXPECT_TRUE(!std::isalpha(static_cast<unsigned char>(letter)) || convolution.whole.find(letter) != std::string::npos) << letter;
  EXPECT_EQ(signatures(graph, convolution, 2).size(), 1);
  EXPECT_EQ(op_of(graph, "head.linear").kind, GraphOp::Kind::product);
}

TEST(ModelGraph, HasEveryParameterOnce) {
  const auto decoder = model::make_decoder(small_decoder("gpt2"));
  const auto classifier = model::make_classifier({});
  for (const Description& description : {describe(*decoder), describe(*classifier), t5({}), opt({}), vit({}), unet_block({})}) {
    std::vector<std::string> expected, found;
    for (const model::Parameter& one : description.parameters) expected.push_back(one.name);
    for (const GraphTensor& one : graph_of(description, {2, 4}).tensors)
      if (one.kind == GraphTensor::Kind::parameter) found.push_back(one.name);
    EXPECT_THAT(found, testing::UnorderedElementsAreArray(expected));
  }
}

TEST(ModelGraph, RefusesHeadsThatDoNotFit) {
  Describer bad;
  bad.card("layer", {"tokens"}, "out");
  bad.product("q", 8, 10, Describer::Bias::none);
  bad.attention({"q", "q", "q"}, 4, 10, true);
  const Description description = bad.done();
  try {
    graph_of(description, {1, 4});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("layer.attention: a width of 10 for 4 heads"));
  }
}

}  // namespace
}  // namespace cairn::planner
