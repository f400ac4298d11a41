#include "kernels/attention.h"

#include <cmath>
#include <ostream>

#include "kernels/closeness.h"

namespace cairn::kernels {
namespace {

struct Case {
  int64_t batch, q_len, k_len, heads, kv_heads, head_dim;
  bool causal = true;
  int64_t query_offset = 0, key_offset = 0;
  int64_t documents = 0;  // how many per row; 0: no ids
  int64_t window = 0;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.batch << " x " << c.q_len << " on " << c.k_len << ", heads " << c.heads << "/" << c.kv_heads << " of " << c.head_dim
             << (c.causal ? ", causal, offsets " : ", full, offsets ") << c.query_offset << " " << c.key_offset << ", documents "
             << c.documents << ", window " << c.window;
}

const Case kCases[] = {{1, 1, 1, 1, 1, 1},
                       {2, 7, 7, 3, 3, 8},
                       {1, 48, 48, 2, 1, 16},
                       {1, 49, 49, 4, 2, 64},
                       {2, 131, 131, 2, 2, 40},
                       {1, 97, 97, 6, 2, 80},
                       {1, 193, 193, 1, 1, 128},
                       {1, 61, 150, 2, 2, 24, false},
                       {1, 150, 61, 2, 1, 33, false},
                       {1, 1, 77, 4, 2, 64, true, 76},
                       {2, 3, 50, 2, 2, 20, true, 47},
                       {1, 60, 130, 2, 2, 32, true, 70},
                       {1, 60, 130, 2, 2, 32, true, 20},
                       {1, 60, 130, 2, 2, 32, true, 200},
                       {1, 70, 70, 1, 1, 16, true, 0, 30},
                       {1, 50, 50, 1, 1, 16, true, 0, 60},
                       {2, 200, 200, 2, 1, 32, true, 0, 0, 3},
                       {2, 111, 111, 2, 2, 16, false, 0, 0, 5},
                       {1, 2, 90, 2, 1, 16, true, 88, 0, 4},
                       {1, 193, 193, 2, 1, 16, true, 0, 0, 0, 1},
                       {2, 210, 210, 2, 2, 24, true, 0, 0, 0, 7},
                       {1, 300, 300, 4, 2, 16, true, 0, 0, 0, 97},
                       {1, 131, 131, 1, 1, 32, true, 0, 0, 0, 400},
                       {2, 200, 200, 2, 1, 32, true, 0, 0, 3, 30},
                       {1, 60, 250, 2, 2, 32, true, 190, 0, 0, 50},
                       {1, 70, 70, 1, 1, 16, true, 0, 30, 0, 20},
                       {1, 1, 177, 4, 2, 64, true, 176, 0, 0, 33},
                       {1, 3, 90, 2, 1, 16, true, 87, 0, 4, 11},
                       {1, 111, 111, 2, 2, 16, false, 0, 0, 0, 13},
                       {1, 60, 130, 2, 2, 32, true, 300, 0, 0, 100}};

struct Inputs {
  at::Tensor fused, q, k, v, dout, query_documents, key_documents;
  AttentionOptions options;

  explicit Inputs(const Case& c) {
    if (c.q_len == c.k_len) {  // slices of one buffer, as a fused projection leaves them
      fused = normal({c.batch, c.q_len, (c.heads + 2 * c.kv_heads) * c.head_dim}, 1);
      q = fused.narrow(2, 0, c.heads * c.head_dim).view({c.batch, c.q_len, c.heads, c.head_dim});
      k = fused.narrow(2, c.heads * c.head_dim, c.kv_heads * c.head_dim).view({c.batch, c.k_len, c.kv_heads, c.head_dim});
      v = fused.narrow(2, (c.heads + c.kv_heads) * c.head_dim, c.kv_heads * c.head_dim).view({c.batch, c.k_len, c.kv_heads, c.head_dim});
    } else {
      q = normal({c.batch, c.q_len, c.heads, c.head_dim}, 1);
      k = normal({c.batch, c.k_len, c.kv_heads, c.head_dim}, 2);
      v = normal({c.batch, c.k_len, c.kv_heads, c.head_dim}, 3);
    }
    dout = normal({c.batch, c.q_len, c.heads, c.head_dim}, 4);
    options = {.causal = c.causal, .query_offset = c.query_offset, .key_offset = c.key_offset};
    options.window = c.window;
    if (c.documents == 0) return;
    const at::Tensor ids = std::get<0>(integers(0, c.documents, {c.batch, std::max(c.q_len, c.k_len)}, 5).sort(1)) * 1000000007;
    key_documents = ids.narrow(1, 0, c.k_len).contiguous();
    query_documents = c.q_len < c.k_len ? ids.narrow(1, c.query_offset, c.q_len).contiguous() : ids.contiguous();
    options.query_documents = &query_documents;
    options.key_documents = &key_documents;
  }
};

// Softmax attention with a plain boolean mask and loops over nothing but ATen, in the dtype of its inputs.
at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                           at::Tensor* lse = nullptr) {
  const int64_t group = q.size(2) / k.size(2);
  const at::Tensor keys = k.repeat_interleave(group, 2), values = v.repeat_interleave(group, 2);
  at::Tensor scores = at::einsum("bihd,bjhd->bhij", {q, keys}) / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor seen = at::ones({q.size(0), q.size(1), k.size(1)}, at::kBool);
  if (options.causal)
    seen =
        seen & ((at::arange(k.size(1)) + options.key_offset).unsqueeze(0) <= (at::arange(q.size(1)) + options.query_offset).unsqueeze(1));
  if (options.window > 0)
    seen = seen & ((at::arange(k.size(1)) + options.key_offset).unsqueeze(0) >
                   (at::arange(q.size(1)) + options.query_offset - options.window).unsqueeze(1));
  if (options.key_documents != nullptr) seen = seen & (options.query_documents->unsqueeze(2) == options.key_documents->unsqueeze(1));
  seen = seen.unsqueeze(1);
  const at::Tensor exponentials = at::exp(scores) * seen.to(scores.scalar_type());
  const at::Tensor sums = exponentials.sum(3, true);
  if (lse != nullptr) *lse = at::log(sums).squeeze(3);
  return at::einsum("bhij,bjhd->bihd", {exponentials / (sums + (sums == 0).to(sums.scalar_type())), values});
}

TEST(Attention, MatchesThePlainFormulaInDouble) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Inputs in(c);
    at::Tensor expected_lse;
    const at::Tensor expected = plain_attention(wide(in.q), wide(in.k), wide(in.v), in.options, &expected_lse);
    const at::Tensor out = at::full({c.batch, c.q_len, c.heads, c.head_dim}, 7.0f), lse = at::empty({c.batch, c.heads, c.q_len});
    with_threads([&] {
      attention(out, lse, in.q, in.k, in.v, in.options);
      expect_close(out, expected, 32, "out");
      expect_close(lse, expected_lse, 32, "lse");
    });
  }
}

TEST(Attention, GradientsAreThoseOfAutograd) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Inputs in(c);
    const at::Tensor qd = leaf(in.q), kd = leaf(in.k), vd = leaf(in.v);
    const std::vector<at::Tensor> expected = gradients(plain_attention(qd, kd, vd, in.options), in.dout, {qd, kd, vd});
    const at::Tensor out = at::empty({c.batch, c.q_len, c.heads, c.head_dim}), lse = at::empty({c.batch, c.heads, c.q_len});
    const at::Tensor dfused = at::full({c.batch, c.q_len, (c.heads + 2) * c.head_dim}, 7.0f);
    const at::Tensor dq = dfused.narrow(2, c.head_dim, c.heads * c.head_dim).view({c.batch, c.q_len, c.heads, c.head_dim});
    const at::Tensor dk = at::full_like(in.k, 7.0f), dv = at::full_like(in.v, 7.0f);
    attention(out, lse, in.q, in.k, in.v, in.options);
    with_threads([&] {
      attention_backward(dq, dk, dv, in.dout, in.q, in.k, in.v, out, lse, in.options);
      expect_close(dq, expected[0], 64, "dq");
      expect_close(dk, expected[1], 64, "dk");
      expect_close(dv, expected[2], 64, "dv");
      EXPECT_TRUE((dfused.narrow(2, 0, c.head_dim) == 7.0f).all().item<bool>()) << "wrote outside dq";
    });
  }
}

TEST(Attention, ReferenceInDoubleIsExact) {
  for (const Case& c : {kCases[3], kCases[12], kCases[16]}) {
    const Inputs in(c);
    const at::Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
    const at::Tensor expected = plain_attention(q, k, v, in.options);
    const std::vector<at::Tensor> expected_gradients = gradients(expected, in.dout, {q, k, v});
    const at::Tensor qv = q.detach(), kv = k.detach(), vv = v.detach(), out = at::empty_like(qv),
                     lse = at::empty({c.batch, c.heads, c.q_len}, at::kDouble);
    const at::Tensor dq = at::empty_like(qv), dk = at::empty_like(kv), dv = at::empty_like(vv);
    attention(out, lse, qv, kv, vv, in.options);
    attention_backward(dq, dk, dv, wide(in.dout), qv, kv, vv, out, lse, in.options);
    expect_close(out, expected.detach(), 64, "out");
    expect_close(dq, expected_gradients[0], 256, "dq");
    expect_close(dk, expected_gradients[1], 256, "dk");
    expect_close(dv, expected_gradients[2], 256, "dv");
  }
}

TEST(Attention, AQueryThatSeesNoKeyGetsZeroAndMinusInfinity) {
  const at::Tensor q = normal({1, 50, 1, 16}, 1), out = at::full({1, 50, 1, 16}, 7.0f), lse = at::empty({1, 1, 50});
  attention(out, lse, q, q, q, {.key_offset = 60});
  EXPECT_EQ(out.abs().max().item<float>(), 0);
  EXPECT_EQ(lse.max().item<float>(), -std::numeric_limits<float>::infinity());
  const at::Tensor dq = at::full_like(q, 7.0f), dk = at::full_like(q, 7.0f), dv = at::full_like(q, 7.0f);
  attention_backward(dq, dk, dv, q, q, q, q, out, lse, {.key_offset = 60});
  for (const at::Tensor& gradient : {dq, dk, dv}) EXPECT_EQ(gradient.abs().max().item<float>(), 0);
}

TEST(Attention, ResultsOverDisjointKeysMerge) {
  const at::Tensor q = normal({1, 100, 2, 16}, 1), k = normal({1, 100, 2, 16}, 2), v = normal({1, 100, 2, 16}, 3),
                   dout = normal({1, 100, 2, 16}, 4);
  const auto run = [&](int64_t begin, int64_t length, at::Tensor& out, at::Tensor& lse) {
    out = at::empty({1, 100, 2, 16}), lse = at::empty({1, 2, 100});
    attention(out, lse, q, k.narrow(1, begin, length), v.narrow(1, begin, length), {.key_offset = begin});
  };
  at::Tensor whole, whole_lse, first, first_lse, second, second_lse;
  run(0, 100, whole, whole_lse), run(0, 37, first, first_lse), run(37, 63, second, second_lse);
  const at::Tensor lse = at::logaddexp(first_lse, second_lse);
  const auto weight = [&](const at::Tensor& part) { return at::exp(part - lse).transpose(1, 2).unsqueeze(3); };
  expect_close(first * weight(first_lse) + second * weight(second_lse), wide(whole), 32, "merged out");
  expect_close(lse, wide(whole_lse), 32, "merged lse");
  const at::Tensor dq = at::empty_like(q), dq1 = at::empty_like(q), dq2 = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  const at::Tensor dk2 = at::empty({1, 63, 2, 16}), dv2 = at::empty({1, 63, 2, 16});
  attention_backward(dq, dk, dv, dout, q, k, v, whole, lse, {});
  attention_backward(dq1, at::empty({1, 37, 2, 16}), at::empty({1, 37, 2, 16}), dout, q, k.narrow(1, 0, 37), v.narrow(1, 0, 37), whole, lse,
                     {});
  attention_backward(dq2, dk2, dv2, dout, q, k.narrow(1, 37, 63), v.narrow(1, 37, 63), whole, lse, {.key_offset = 37});
  expect_close(dq1 + dq2, wide(dq), 64, "dq of the parts");
  expect_close(dk2, wide(dk.narrow(1, 37, 63)), 64, "dk of the second part");
}

TEST(Attention, UsesTheScaleItIsGiven) {
  const at::Tensor q = normal({1, 60, 1, 16}, 1), out = at::empty_like(q), lse = at::empty({1, 1, 60}), twice = at::empty_like(q);
  attention(out, lse, q, q, q, {.scale = 0.5});
  attention(twice, lse, q * 2, q, q, {});  // 2 / sqrt(16)
  expect_close(out, wide(twice), 16, "out");
}

TEST(Attention, ShowsNanInsteadOfHidingIt) {
  const at::Tensor q = normal({1, 60, 1, 16}, 1), k = q.clone(), out = at::empty_like(q), lse = at::empty({1, 1, 60});
  k[0][10][0][3] = std::numeric_limits<float>::quiet_NaN();
  attention(out, lse, q, k, q, {});
  EXPECT_TRUE(at::isfinite(out.narrow(1, 0, 10)).all().item<bool>());
  EXPECT_TRUE(at::isnan(out.narrow(1, 10, 50)).all().item<bool>());
}

TEST(Attention, RefusesHeadsThatDoNotDivide) {
  const at::Tensor q = at::zeros({1, 4, 3, 8}), k = at::zeros({1, 4, 2, 8});
  EXPECT_NE(error_of([&] { attention(q, at::zeros({1, 3, 4}), q, k, k, {}); }).find("3 query heads over 2 key heads"), std::string::npos);
}

}  // namespace
}  // namespace cairn::kernels
