// Parallel streams: prefixes in attention, and the mixer.
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/attention.h"
#include "kernels/block_pattern.h"
#include "kernels/closeness.h"
#include "model/decoder/prefix_attention.h"
#include "model/decoder/stream_mixer.h"

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
  // The first token's, from the formula: z is its hidden states, stream after stream.
  at::Tensor z = at::cat({x[0][0], x[2][0], x[4][0], x[6][0]}).to(at::kDouble);
  const at::Tensor h = at::matmul(wide(weights.w1), z) + wide(weights.b1);
  const at::Tensor scores = at::matmul(wide(weights.w2), h * at::sigmoid(h)) + wide(weights.b2);
  expect_close(w[0][0], scores.softmax(0) * 0.99 + 0.0025, 32, "weights");
}

}  // namespace
}  // namespace cairn::model
