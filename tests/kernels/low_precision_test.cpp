// Kernels on bf16: each is the fp32 kernel of the same values, rounded once at the end.
#include "kernels/low_precision.h"

#include "base/random.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/closeness.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/stochastic_rounding.h"
#include "kernels/swiglu.h"

namespace cairn::kernels {
namespace {

at::Tensor low(at::IntArrayRef sizes, uint64_t seed) { return normal(sizes, seed, at::kBFloat16); }
at::Tensor low_room(at::IntArrayRef sizes) { return at::empty(sizes, at::kBFloat16); }
at::Tensor fp32(const at::Tensor& x) { return x.to(at::kFloat); }

void expect_rounded(const at::Tensor& low, const at::Tensor& wide, const char* what) {
  ASSERT_EQ(low.scalar_type(), at::kBFloat16) << what;
  EXPECT_TRUE(at::equal(low, wide.to(at::kBFloat16))) << what;
}

TEST(LowPrecision, NormAndItsGradients) {
  const at::Tensor x = low({5, 33}, 1), weight = low({33}, 2), dy = low({5, 33}, 3), add = low({5, 33}, 4);
  const at::Tensor y = low_room({5, 33}), rstd = at::empty({5}), wide_y = at::empty({5, 33}), wide_rstd = at::empty({5});
  rms_norm(y, rstd, x, weight, 1e-5);
  rms_norm(wide_y, wide_rstd, fp32(x), fp32(weight), 1e-5);
  expect_rounded(y, wide_y, "y");
  EXPECT_TRUE(at::equal(rstd, wide_rstd));
  const at::Tensor wide_add = fp32(add);
  rms_norm_backward_input(y, dy, x, weight, rstd, &add);
  rms_norm_backward_input(wide_y, fp32(dy), fp32(x), fp32(weight), rstd, &wide_add);
  expect_rounded(y, wide_y, "dx");
  const at::Tensor dw = at::ones({33}), wide_dw = at::ones({33});
  rms_norm_backward_weight(dw, dy, x, rstd, /*accumulate=*/true);
  rms_norm_backward_weight(wide_dw, fp32(dy), fp32(x), rstd, /*accumulate=*/true);
  EXPECT_TRUE(at::equal(dw, wide_dw));
}

TEST(LowPrecision, RotationOfHeadsThatLieInAFusedBuffer) {
  const RopeTable table = rope_table(9, 8, 1e4, at::kFloat);
  const at::Tensor fused = low({2, 7, 5, 8}, 1), before = fused.clone(), part = fused.narrow(2, 1, 3), wide = fp32(part).contiguous();
  rope(part, table, 2, true);
  rope(wide, table, 2, true);
  expect_rounded(part, wide, "the heads");
  EXPECT_TRUE(at::equal(fused.narrow(2, 0, 1), before.narrow(2, 0, 1)));
  EXPECT_TRUE(at::equal(fused.narrow(2, 4, 1), before.narrow(2, 4, 1)));
}

TEST(LowPrecision, SwigluAndItsGradientInPlace) {
  const at::Tensor gate_up = low({4, 14}, 1), y = low_room({4, 7}), wide_y = at::empty({4, 7});
  swiglu(y, gate_up);
  swiglu(wide_y, fp32(gate_up));
  expect_rounded(y, wide_y, "y");
  const at::Tensor up = gate_up.clone(), active = low({4, 7}, 2), wide_up = fp32(up), wide_active = fp32(active);
  swiglu_backward(up, active, up, &active);
  swiglu_backward(wide_up, wide_active, wide_up, &wide_active);
  expect_rounded(up, wide_up, "the gradient");
  expect_rounded(active, wide_active, "what it was taken of");
}

TEST(LowPrecision, AttentionOverSlicesAndDocuments) {
  const at::Tensor qkv = low({2, 13, 8, 16}, 1), dout = low({2, 13, 4, 16}, 2);
  const at::Tensor documents = at::cat({at::zeros({2, 6}, at::kLong), at::ones({2, 7}, at::kLong)}, 1);
  const AttentionOptions options{.query_documents = &documents, .key_documents = &documents};
  const auto run = [&](const at::Tensor& all, const at::Tensor& gradient) {
    const at::Tensor q = all.narrow(2, 0, 4), k = all.narrow(2, 4, 2), v = all.narrow(2, 6, 2);
    const at::Tensor out = at::empty({2, 13, 4, 16}, all.options()), lse = at::empty({2, 4, 13}), into = at::empty_like(all);
    attention(out, lse, q, k, v, options);
    attention_backward(into.narrow(2, 0, 4), into.narrow(2, 4, 2), into.narrow(2, 6, 2), gradient, q, k, v, out, lse, options);
    return std::vector<at::Tensor>{out, lse, into};
  };
  const std::vector<at::Tensor> a = run(qkv, dout), b = run(fp32(qkv), fp32(dout));
  expect_rounded(a[0], b[0], "out");
  EXPECT_TRUE(at::equal(a[1], b[1]));
  // The backward pass starts from the rounded output, so the two differ by more than the last rounding.
  EXPECT_LT((fp32(a[2]) - b[2]).abs().max().item<double>(), 0.02 * b[2].abs().max().item<double>());
}

TEST(LowPrecision, CrossEntropyCountsInFp32) {
  const at::Tensor logits = low({6, 37}, 1),
                   targets = at::tensor({int64_t{0}, int64_t{36}, int64_t{5}, kIgnoreTarget, int64_t{7}, int64_t{7}}),
                   scale = at::tensor({1.0f, 0.5f, 2.0f, 3.0f, 0.0f, 1.0f});
  const at::Tensor loss = at::empty({6}), lse = at::empty({6}), wide_loss = at::empty({6}), wide_lse = at::empty({6}), wide = fp32(logits);
  cross_entropy_and_gradient(loss, lse, logits, targets, scale);
  cross_entropy_and_gradient(wide_loss, wide_lse, wide, targets, scale);
  EXPECT_TRUE(at::equal(loss, wide_loss));
  EXPECT_TRUE(at::equal(lse, wide_lse));
  expect_rounded(logits, wide, "the gradient");
}

TEST(LowPrecision, AdamwIsRoundedOnceToNearestOrStochastically) {
  const base::Random random = base::Random(3).for_name("w");
  for (const base::Random* rounding : {static_cast<const base::Random*>(nullptr), &random}) {
    const at::Tensor p = low({41}, 1), g = low({41}, 2), m = low({41}, 3), v = low({41}, 4).abs();
    const at::Tensor wide_p = fp32(p), wide_m = fp32(m), wide_v = fp32(v), expected = low_room({41});
    adamw(wide_p, wide_m, wide_v, fp32(g), {.weight_decay = 0.1, .step = 2});
    adamw(p, m, v, g, {.weight_decay = 0.1, .step = 2, .rounding = rounding});
    expect_rounded(m, wide_m, "m");
    expect_rounded(v, wide_v, "v");
    if (rounding != nullptr) round_stochastically(expected, wide_p, *rounding, 0);
    EXPECT_TRUE(at::equal(p, rounding != nullptr ? expected : wide_p.to(at::kBFloat16)));
  }
}

TEST(LowPrecision, GradientsOfRowsAreSummedInTheTablesPrecision) {
  const at::Tensor ids = integers(0, 5, {64}, 1), dy = low({64, 9}, 2), dtable = at::zeros({5, 9}), expected = at::zeros({5, 9});
  embedding_backward(dtable, ids, dy);
  embedding_backward(expected, ids, fp32(dy));
  EXPECT_TRUE(at::equal(dtable, expected));
}

// The processor may add up in another order, so these are compared to a rounding of the result.
TEST(LowPrecision, ProductsAndAnFp32WeightGradient) {
  const at::Tensor x = low({19, 48}, 1), w = low({40, 48}, 2), dy = low({19, 40}, 3), y = low_room({19, 40}), dx = low_room({19, 48});
  const auto near = [](const at::Tensor& actual, const at::Tensor& expected, const char* what) {
    EXPECT_LT((wide(actual) - expected).abs().max().item<double>(), 1.01 / 256 * expected.abs().max().item<double>()) << what;
  };
  linear(y, x, w);
  near(y, at::matmul(wide(x), wide(w).t()), "y");
  linear_backward_input(dx, dy, w);
  near(dx, at::matmul(wide(dy), wide(w)), "dx");
  linear_backward_input(dx, dy, w, /*accumulate=*/true);
  near(dx, 2 * at::matmul(wide(dy), wide(w)), "dx twice");
  const at::Tensor dw = at::empty({40, 48}), expected = at::matmul(wide(dy).t(), wide(x));
  linear_backward_weight(dw, dy, x);
  near(dw, expected, "dw");
  // What is small beside the sum is not lost: it is kept in fp32.
  dw.fill_(1024);
  linear_backward_weight(dw, dy, x, /*accumulate=*/true);
  near(dw - 1024, expected, "dw added");
}

}  // namespace
}  // namespace cairn::kernels
