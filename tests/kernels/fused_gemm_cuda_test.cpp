// Products on a GPU that go on working on their results, against double: as exact as the parts in a row.
#include "kernels/gemm/fused_gemm_cuda.h"

#include "kernels/fused_gemm.h"
#include "kernels/gemm.h"
#include "kernels/on_gpu.h"
#include "kernels/swiglu.h"

namespace cairn::kernels {
namespace {

struct FusedSizes {
  int64_t rows, in, ff;
};
// Less than a box, one off a tile, several tiles for each block, and sums on both sides of where the gradient takes turns.
constexpr FusedSizes kFusedSizes[] = {{1, 8, 8},         {127, 64, 128},   {129, 72, 136},     {300, 328, 8},     {1000, 328, 344},
                                      {4096, 768, 2048}, {300, 1032, 264}, {1000, 2048, 1016}, {5000, 1096, 1536}};

std::string fused_name(const FusedSizes& c) { return fmt::format("{} rows, {} in, {} ff", c.rows, c.in, c.ff); }

#define CAIRN_NEEDS_HOPPER()                                                      \
  CAIRN_NEEDS_GPU();                                                              \
  if (!is_hopper(at::Device(at::kCUDA, 0))) GTEST_SKIP() << "no Hopper GPU here"; \
  ASSERT_TRUE(has_hopper_gemms()) << "built without 90a in CMAKE_CUDA_ARCHITECTURES"

at::Tensor low_on_gpu(const std::vector<int64_t>& sizes, uint64_t seed, double size = 1) {
  return on_gpu((normal(sizes, seed) * size).to(at::kBFloat16));
}
at::Tensor doubled(const at::Tensor& x) { return x.to(at::kDouble); }

TEST(FusedGemmOnCuda, SwigluIsAsExactAsItsParts) {
  CAIRN_NEEDS_HOPPER();
  for (const FusedSizes& c : kFusedSizes) {
    const at::Tensor x = low_on_gpu({c.rows, c.in}, 1), w = low_on_gpu({2 * c.ff, c.in}, 2, 0.05);
    const at::Tensor gate_up = poisoned({c.rows, 2 * c.ff}, at::kBFloat16), y = poisoned({c.rows, c.ff}, at::kBFloat16);
    ASSERT_TRUE(linear_swiglu_on_cuda(gate_up, y, x, w, MinTiles::any));
    const at::Tensor plain = at::matmul(x, w.t()), exact = at::matmul(doubled(x), doubled(w).t());
    expect_as_exact(gate_up, plain, exact, fused_name(c));
    const auto swiglu_of = [&](const at::Tensor& both) { return at::silu(both.narrow(1, 0, c.ff)) * both.narrow(1, c.ff, c.ff); };
    expect_as_exact(y, swiglu_of(plain), swiglu_of(exact), fused_name(c));
    const at::Tensor again = at::empty_like(y);
    swiglu(again, gate_up);
    EXPECT_TRUE(bitwise_equal(y, again)) << "backward recomputes it from rounded values: " << fused_name(c);
  }
}

TEST(FusedGemmOnCuda, SwigluBackwardIsAsExactAsItsPartsAndMayBeInPlace) {
  CAIRN_NEEDS_HOPPER();
  for (const FusedSizes& c : kFusedSizes) {
    const at::Tensor gate_up = low_on_gpu({c.rows, 2 * c.ff}, 1, 2), w = low_on_gpu({c.in, c.ff}, 2, 0.1),
                     dout = low_on_gpu({c.rows, c.in}, 3);
    const at::Tensor dgate_up = poisoned({c.rows, 2 * c.ff}, at::kBFloat16), y = poisoned({c.rows, c.ff}, at::kBFloat16);
    ASSERT_TRUE(linear_swiglu_backward_on_cuda(dgate_up, y, dout, w, gate_up, MinTiles::any));
    const at::Tensor dy = at::matmul(dout, w), plain = at::empty_like(gate_up), plain_y = at::empty_like(y);
    swiglu_backward(plain, dy, gate_up, &plain_y);
    const at::Tensor exact = at::empty(gate_up.sizes(), gate_up.options().dtype(at::kDouble)),
                     exact_y = at::empty(y.sizes(), exact.options());
    reference::swiglu_backward(exact, at::matmul(doubled(dout), doubled(w)), doubled(gate_up), &exact_y);
    expect_as_exact(dgate_up, plain, exact, fused_name(c));
    expect_as_exact(y, plain_y, exact_y, fused_name(c));
    const at::Tensor in_place = gate_up.clone();
    ASSERT_TRUE(linear_swiglu_backward_on_cuda(in_place, y, dout, w, in_place, MinTiles::any));
    EXPECT_TRUE(bitwise_equal(in_place, dgate_up)) << fused_name(c);
  }
}

TEST(FusedGemmOnCuda, RopeIsAsExactAsItsParts) {
  CAIRN_NEEDS_HOPPER();
  struct {
    int64_t batch, length, in, heads, rotated, head_dim;
  } const cases[] = {
      {1, 1, 8, 1, 1, 64}, {3, 43, 72, 5, 3, 64}, {2, 129, 328, 7, 5, 128}, {4, 1024, 768, 36, 24, 64}, {1, 300, 64, 3, 0, 128}};
  for (const auto& c : cases) {
    const int64_t rows = c.batch * c.length, out = c.heads * c.head_dim, position = 3;
    const at::Tensor x = low_on_gpu({rows, c.in}, 1), w = low_on_gpu({out, c.in}, 2);
    const RopeTable table = rope_table(position + c.length, c.head_dim, 10000, at::kFloat), there{table.cos.cuda(), table.sin.cuda()},
                    in_double{doubled(there.cos), doubled(there.sin)};
    const at::Tensor y = poisoned({rows, out}, at::kBFloat16);
    ASSERT_TRUE(
        linear_rope_on_cuda(y, x, w, {.table = there, .heads = c.rotated, .length = c.length, .position = position}, MinTiles::any));
    const std::vector<int64_t> shape{c.batch, c.length, c.heads, c.head_dim};
    const at::Tensor plain = at::matmul(x, w.t()).view(shape), exact = at::matmul(doubled(x), doubled(w).t()).view(shape);
    rope(plain.narrow(2, 0, c.rotated), there, position);
    reference::rope(exact.narrow(2, 0, c.rotated), in_double, position);
    expect_as_exact(y, plain.view({rows, out}), exact.view({rows, out}), fmt::format("{} x {}, {} heads", c.batch, c.length, c.heads));
  }
}

// Codes of both sides; sums keep fewer bits on the way than those of cuBLASLt's other form, as forward products may.
TEST(FusedGemmOnCuda, Fp8OperandsGiveTheProductOfTheirValues) {
  CAIRN_NEEDS_HOPPER();
  for (const FusedSizes& c : kFusedSizes) {
    if (c.in % 16 != 0) continue;
    const at::Tensor x = low_on_gpu({c.rows, c.in}, 1), w = low_on_gpu({2 * c.ff, c.in}, 2, 0.05);
    const Fp8Matrix xs = to_fp8(x, Fp8::e4m3), ws = to_fp8(w, Fp8::e4m3);
    const at::Tensor exact = at::matmul(from_fp8(xs, c.rows, at::kDouble), from_fp8(ws, 2 * c.ff, at::kDouble).t());
    const at::Tensor gate_up = poisoned({c.rows, 2 * c.ff}, at::kBFloat16), y = poisoned({c.rows, c.ff}, at::kBFloat16);
    at::Tensor amax;
    ASSERT_TRUE(linear_swiglu_on_cuda(gate_up, y, xs, ws, &amax, MinTiles::any));
    EXPECT_LT(relative_error(gate_up, exact), 4e-3) << fused_name(c);
    const at::Tensor again = at::empty_like(y);
    swiglu(again, gate_up);
    EXPECT_TRUE(bitwise_equal(y, again)) << fused_name(c);
    EXPECT_EQ(amax.max().view({1}).view(at::kFloat).item<float>(), y.abs().max().to(at::kFloat).item<float>()) << fused_name(c);
    if (2 * c.ff % 64 != 0) continue;
    const RopeTable table = rope_table(c.rows, 64, 10000, at::kFloat), there{table.cos.cuda(), table.sin.cuda()};
    const at::Tensor rotated = poisoned({c.rows, 2 * c.ff}, at::kBFloat16), plain = gate_up.view({1, c.rows, -1, 64});
    ASSERT_TRUE(linear_rope_on_cuda(rotated, xs, ws, {.table = there, .heads = 1, .length = c.rows}, MinTiles::any));
    rope(plain.narrow(2, 0, 1), there);
    EXPECT_LT(relative_error(rotated, plain.view_as(rotated)), 4e-3) << fused_name(c);
  }
}

TEST(FusedGemmOnCuda, WhatDoesNotSuitItIsLeftToOthers) {
  CAIRN_NEEDS_HOPPER();
  const at::Tensor x = low_on_gpu({64, 16}, 1), w = low_on_gpu({32, 16}, 2), gate_up = at::empty({64, 32}, x.options()),
                   y = at::empty({64, 16}, x.options());
  EXPECT_FALSE(linear_swiglu_on_cuda(gate_up, y, x, w)) << "few tiles";
  EXPECT_FALSE(linear_swiglu_on_cuda(gate_up, y, askew(x, 1), w, MinTiles::any)) << "rows off their places";
  EXPECT_FALSE(linear_swiglu_on_cuda(gate_up, y, x.narrow(1, 0, 12), w.narrow(1, 0, 12), MinTiles::any)) << "12 is no multiple of 8";
  EXPECT_FALSE(linear_swiglu_on_cuda(gate_up.to(at::kFloat), y, x, w, MinTiles::any)) << "fp32";
  ASSERT_TRUE(linear_swiglu_on_cuda(gate_up, y, x, w, MinTiles::any));
  const at::Tensor expected = y.clone();
  linear_swiglu(gate_up, y, x, w);
  EXPECT_LT(relative_error(y, expected), 0.01);
}

}  // namespace
}  // namespace cairn::kernels
