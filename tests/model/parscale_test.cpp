// Parallel streams: prefixes in attention, and the mixer.
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "kernels/aten.h"
#include "kernels/attention.h"
#include "kernels/block_pattern.h"
#include "kernels/closeness.h"
#include "model/decoder/decoder.h"
#include "model/decoder/prefix_attention.h"
#include "model/decoder/stream_mixer.h"
#include "model/families/config.h"
#include "model/generate/generate.h"
#include "model/model.h"

namespace cairn::model {
namespace {

using kernels::expect_close;
using kernels::leaf;
using kernels::normal;
using kernels::wide;

// Softmax attention of one sequence per row over [prefix of its stream; tokens], in double, by autograd.
at::Tensor plain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& prefix_k, const at::Tensor& prefix_v) {
  const int64_t streams = prefix_k.size(0), batch = q.size(0) / streams, length = q.size(1), group = q.size(2) / k.size(2);
  const auto joined = [&](const at::Tensor& prefix, const at::Tensor& tokens) {
    return at::cat({prefix.repeat_interleave(batch, 0).transpose(1, 2), tokens}, 1).repeat_interleave(group, 2);
  };
  const at::Tensor keys = joined(prefix_k, k), values = joined(prefix_v, v);
  const at::Tensor scores = at::einsum("bihd,bjhd->bhij", {q, keys}) / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor hidden = at::ones({length, keys.size(1)}, at::kBool).triu(keys.size(1) - length + 1);
  return at::einsum("bhij,bjhd->bihd", {scores.masked_fill(hidden, -INFINITY).softmax(-1), values});
}

TEST(Prefixes, AreKeysThatEveryQueryOfTheStreamSees) {
  const int64_t streams = 3, batch = 2, length = 37, heads = 4, kv_heads = 2, dim = 8, tokens = 5;
  const at::Tensor q = normal({streams * batch, length, heads, dim}, 1), k = normal({streams * batch, length, kv_heads, dim}, 2),
                   v = normal({streams * batch, length, kv_heads, dim}, 3), dout = normal({streams * batch, length, heads, dim}, 4);
  const Prefixes prefixes{normal({streams, kv_heads, tokens, dim}, 5), normal({streams, kv_heads, tokens, dim}, 6)};
  const at::Tensor qd = leaf(q), kd = leaf(k), vd = leaf(v), pk = leaf(prefixes.k), pv = leaf(prefixes.v);
  const at::Tensor expected = plain(qd, kd, vd, pk, pv);
  const std::vector<at::Tensor> gradients = kernels::gradients(expected, dout, {qd, kd, vd, pk, pv});

  const at::Tensor out = at::empty_like(q), lse = at::empty({streams * batch, heads, length});
  kernels::attention(out, lse, q, k, v, {});
  add_prefixes(out, lse, q, prefixes);
  expect_close(out, expected.detach(), 64, "out");
  const at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  kernels::attention_backward(dq, dk, dv, dout, q, k, v, out, lse, {});
  const Prefixes d = prefix_gradients(dq, dout, q, prefixes, out, lse);
  expect_close(dq, gradients[0], 128, "dq");
  expect_close(dk, gradients[1], 128, "dk");
  expect_close(dv, gradients[2], 128, "dv");
  expect_close(d.k, gradients[3], 128, "prefix k");
  expect_close(d.v, gradients[4], 128, "prefix v");
}

// A prefix is always visible, whatever blocks a head sees.
TEST(Prefixes, StandBesideABlockPattern) {
  const kernels::BlockPattern pattern{.block = 16, .local_blocks = 1, .stride = 2, .kv_heads = 2};
  const at::Tensor q = normal({1, 80, 2, 8}, 1), k = normal({1, 80, 2, 8}, 2), v = normal({1, 80, 2, 8}, 3);
  const Prefixes prefixes{normal({1, 2, 16, 8}, 5), normal({1, 2, 16, 8}, 6)};
  const at::Tensor out = at::empty_like(q), lse = at::empty({1, 2, 80});
  kernels::attention(out, lse, q, k, v, {.pattern = &pattern});
  add_prefixes(out, lse, q, prefixes);
  for (int64_t head = 0; head < 2; ++head) {
    at::Tensor hidden = at::zeros({80, 96}, at::kBool);
    for (int64_t i = 0; i < 80; ++i)
      for (int64_t j = 0; j < 80; ++j) hidden[i][16 + j] = j > i || !pattern.sees(head, i / 16, j / 16);
    const auto joined = [&](const at::Tensor& prefix, const at::Tensor& tokens) {
      return wide(at::cat({prefix[0][head], tokens[0].select(1, head)}, 0));
    };
    const at::Tensor scores = at::matmul(wide(q[0].select(1, head)), joined(prefixes.k, k).t()) / std::sqrt(8.0);
    const at::Tensor expected = at::matmul(scores.masked_fill(hidden, -INFINITY).softmax(-1), joined(prefixes.v, v));
    expect_close(out[0].select(1, head), expected, 64, "out");
  }
}

TEST(StreamMixer, OneStreamAloneWhereItsWeightIsOne) {
  const int64_t streams = 2, embed = 6;
  const at::Tensor x = normal({streams * 3, 5, embed}, 1);
  const MixerWeights weights{normal({embed, streams * embed}, 2), at::zeros({embed}), at::zeros({streams, embed}), at::zeros({streams})};
  weights.b2[1] = 1e4;  // the softmax gives the second stream everything
  EXPECT_TRUE(at::equal(mix_streams(x, weights, 0), x.narrow(0, 3, 3)));
  const at::Tensor smoothed = mix_streams(x, weights, 0.2);
  expect_close(smoothed, wide(x.narrow(0, 0, 3)) * 0.1 + wide(x.narrow(0, 3, 3)) * 0.9, 8, "with smoothing");
}

TEST(StreamMixer, WeightsAreOfEachTokenAndSumToOne) {
  const at::Tensor x = normal({4 * 2, 3, 6}, 1);
  const MixerWeights weights{normal({6, 24}, 2), normal({6}, 3), normal({4, 6}, 4), normal({4}, 5)};
  const at::Tensor w = stream_weights(x, weights, 0.01);
  ASSERT_EQ(w.sizes(), (std::vector<int64_t>{2, 3, 4}));
  expect_close(w.sum(2), at::ones({2, 3}, at::kDouble), 8, "sum");
  EXPECT_GE(w.min().item<float>(), 0.0025f * 0.999f);
  // The first token's, from the formula: z is its hidden states, all streams of one element side by side.
  at::Tensor z = at::stack({x[0][0], x[2][0], x[4][0], x[6][0]}, 1).flatten().to(at::kDouble);
  const at::Tensor h = at::matmul(wide(weights.w1), z) + wide(weights.b1);
  const at::Tensor scores = at::matmul(wide(weights.w2), h * at::sigmoid(h)) + wide(weights.b2);
  expect_close(w[0][0], scores.softmax(0) * 0.99 + 0.0025, 32, "weights");
}

DecoderShape small_shape(int64_t streams) {
  DecoderShape shape{.vocab = 29, .embed = 32, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 8, .mlp = 24, .length = 120};
  if (streams > 1) shape.streams = {.count = streams, .prefix_tokens = 6, .smoothing = 0.01};
  return shape;
}

struct Written {
  DecoderShape shape;
  std::unique_ptr<Model> model;
  FlatWeights weights;
  Buffers buffers;
  mesh::Axes alone;

  explicit Written(const DecoderShape& s)
      : shape(s),
        model(make_decoder(shape)),
        weights(model->layout(), at::empty({model->elements()})),
        buffers(model->make_buffers(at::kFloat)) {
    initialize_parameters(*model, weights.flat(), base::Random(4));
    weights.flat().mul_(12);  // so that tokens differ clearly in likelihood
  }
  at::Tensor named(const std::string& name) const {
    for (const mesh::NamedTensor& one : weights.layout().views(weights.flat()))
      if (one.name == name) return one.tensor;
    return {};
  }
  at::Tensor logits(const std::vector<int32_t>& ids, bool plainly) {
    const at::NoGradGuard no_grad;
    const Call call{.weights = weights, .buffers = buffers, .axes = alone};
    Values values;
    values.put("tokens", at::tensor(ids, at::kInt).to(at::kLong).view({1, -1}));
    for (const auto& block : model->blocks()) plainly ? block->plain(values, call) : block->forward(values, nullptr, call);
    return values.get("logits")[0];
  }
};

const std::vector<int32_t> kIds{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6};

// With all weight on the second stream the model is the one whose streams all have its prefix.
TEST(ParallelStreams, OneHotMixingIsThatStreamAlone) {
  Written two(small_shape(2)), same(small_shape(2));
  two.shape.streams.smoothing = same.shape.streams.smoothing = 0;
  two.model = make_decoder(two.shape), same.model = make_decoder(same.shape);
  two.named("model.aggregate_layer.2.weight").zero_();
  two.named("model.aggregate_layer.2.bias")[1] = 1e4;
  for (int64_t layer = 0; layer < 2; ++layer)
    for (const char* name : {"prefix_k", "prefix_v"}) {
      const at::Tensor prefix = same.named("model.layers." + std::to_string(layer) + ".self_attn." + name);
      prefix[0].copy_(prefix[1]);
    }
  EXPECT_GT((two.logits(kIds, false) - Written(small_shape(1)).logits(kIds, false)).abs().max().item<float>(), 1e-2);
  EXPECT_LT((two.logits(kIds, false) - same.logits(kIds, false)).abs().max().item<float>(), 1e-5);
  const at::Tensor plain = two.logits(kIds, true);
  EXPECT_LT(((two.logits(kIds, false) - plain).abs().max() / plain.abs().max()).item<float>(), 1e-4);
}

TEST(ParallelStreams, StreamsWithTheSamePrefixAreOneStream) {
  Written four(small_shape(4)), one(small_shape(4));
  for (int64_t layer = 0; layer < 2; ++layer)
    for (const char* name : {"prefix_k", "prefix_v"}) {
      const std::string full = "model.layers." + std::to_string(layer) + ".self_attn." + name;
      for (int64_t p = 0; p < 4; ++p) four.named(full)[p].copy_(one.named(full)[2]);
    }
  one.named("model.aggregate_layer.2.weight").zero_();
  one.named("model.aggregate_layer.2.bias")[2] = 1e4;
  one.shape.streams.smoothing = 0, one.model = make_decoder(one.shape);
  EXPECT_LT((four.logits(kIds, false) - one.logits(kIds, false)).abs().max().item<float>(), 1e-4);
}

TEST(ParallelStreams, GenerationWithACacheWritesTheTokensOfAFullPass) {
  for (const int64_t window : {0, 8}) {
    DecoderShape shape = small_shape(4);
    shape.window = window;
    Written it(shape);
    const GenerateRequest request{kIds};
    const std::vector<GeneratedText> found =
        generate(*it.model, it.weights, it.buffers, {&request, 1}, {.tokens = 60, .length_max = 120, .sampling = {.temperature = 0}});
    ASSERT_EQ(found[0].ids.size(), 60u);
    std::vector<int32_t> ids = kIds;
    for (size_t i = 0; i < found[0].ids.size(); ids.push_back(found[0].ids[i++])) {
      const at::Tensor logits = it.logits(ids, true)[-1];
      EXPECT_EQ(found[0].ids[i], logits.argmax().item<int64_t>()) << "at " << ids.size();
      EXPECT_NEAR(found[0].log_probabilities[i], logits.log_softmax(0)[found[0].ids[i]].item<float>(), 3e-4) << "at " << ids.size();
    }
  }
}

// Unequal prompts, two of them shared; row by row, and rows at one position together.
TEST(ParallelStreams, GenerationOfSeveralTextsIsThatOfEach) {
  Written it(small_shape(3));
  std::vector<GenerateRequest> requests;
  for (const int32_t length : {3, 20, 20, 11}) {
    requests.emplace_back();
    for (int32_t i = 0; i < length; ++i) requests.back().prompt.push_back((i * i + length) % 29);
  }
  for (const bool batched : {false, true}) {
    const GenerateOptions options{.tokens = 30, .length_max = 120, .sampling = {.temperature = 0}, .batched = batched};
    const std::vector<GeneratedText> together = generate(*it.model, it.weights, it.buffers, requests, options);
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(together[i].ids, generate(*it.model, it.weights, it.buffers, {&requests[i], 1}, options)[0].ids) << "request " << i;
  }
}

TEST(ParallelStreams, ConfigJsonHasTheFieldsOfPublishedModels) {
  DecoderShape shape = small_shape(4);
  shape.family = "qwen2", shape.qkv_bias = true;
  const std::string text = format_config(shape);
  EXPECT_NE(text.find("\"model_type\": \"qwen2_parscale\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"Qwen2ParScaleForCausalLM\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"parscale_n\": 4"), std::string::npos) << text;
  EXPECT_EQ(parse_config(text, "config.json"), shape);
  shape.streams.smoothing = 0;
  EXPECT_EQ(parse_config(format_config(shape), "config.json"), shape);
}

// 2 * layers * P * kv_heads * prefix * head_dim + (P embed + 1) embed + (embed + 1) P.
TEST(ParallelStreams, AddTheParametersOfTheFormula) {
  const int64_t added = make_decoder(small_shape(4))->elements() - make_decoder(small_shape(1))->elements();
  EXPECT_EQ(added, 2 * 2 * 4 * 2 * 6 * 8 + (4 * 32 + 1) * 32 + (32 + 1) * 4);
}

}  // namespace
}  // namespace cairn::model
