// Codes of a GPU are those of the CPU, bit for bit, and its products are those of what they stand for.
#include "kernels/gemm/fp8_cuda.h"

#include "kernels/cross_entropy.h"
#include "kernels/fp8.h"
#include "kernels/on_gpu.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"

namespace cairn::kernels {
namespace {

#define CAIRN_NEEDS_FP8() \
  CAIRN_NEEDS_GPU();      \
  if (!has_fp8(at::Device(at::kCUDA, 0))) GTEST_SKIP() << "this GPU has no fp8 tensor cores"

bool same_codes(const at::Tensor& a, const at::Tensor& b) { return at::equal(a.cpu().view(at::kByte), b.cpu().view(at::kByte)); }

TEST(Fp8OnCuda, CodesAreThoseOfTheCpu) {
  CAIRN_NEEDS_FP8();
  for (const Fp8 code : {Fp8::e4m3, Fp8::e5m2})
    for (const auto& [rows, columns, size] : std::vector<std::tuple<int64_t, int64_t, double>>{{1, 16, 1},
                                                                                               {5, 16, 1e-6},
                                                                                               {16, 48, 3e4},
                                                                                               {129, 144, 1e-30},
                                                                                               {130, 128, 0.02},
                                                                                               {127, 4096, 1},
                                                                                               {1000, 272, 1e30},
                                                                                               {4, 32, 0}}) {
      const at::Tensor x = normal({rows, columns + 16}, 1).mul_(size).to(at::kBFloat16);
      for (const bool apart : {false, true}) {
        const at::Tensor part = apart ? x.narrow(1, 16, columns) : x.narrow(1, 0, columns).contiguous();
        const at::Tensor there = on_gpu(x), part_there = apart ? there.narrow(1, 16, columns) : on_gpu(part);
        const Fp8Matrix found = to_fp8(part_there, code), expected = reference::to_fp8(part, code);
        EXPECT_EQ(found.factor.item<float>(), expected.factor.item<float>()) << rows << " x " << columns;
        EXPECT_TRUE(same_codes(found.rows, expected.rows)) << rows << " x " << columns;
        EXPECT_TRUE(same_codes(found.columns, expected.columns)) << rows << " x " << columns;
        const Fp8Matrix alone = to_fp8(part_there, code, {.rows = false});
        EXPECT_TRUE(!alone.rows.defined() && same_codes(alone.columns, expected.columns));
      }
    }
}

TEST(Fp8OnCuda, GradientsOfACrossEntropyAreCodedAsTheyAreMade) {
  CAIRN_NEEDS_FP8();
  for (const auto& [rows, vocab] : std::vector<std::pair<int64_t, int64_t>>{{1, 16}, {37, 144}, {130, 1008}, {500, 4096}}) {
    const at::Tensor logits = on_gpu((normal({rows, vocab}, 1) * 3).to(at::kBFloat16));
    const at::Tensor targets = on_gpu((at::arange(rows) * 7).remainder(vocab)), scale = on_gpu(at::full({1}, 0.03f));
    if (rows > 1) targets[rows / 2].fill_(kIgnoreTarget);
    const at::Tensor loss = poisoned({rows}), lse = poisoned({rows}), exact = logits.to(at::kDouble), exact_lse = exact.logsumexp(1);
    cross_entropy(loss, lse, logits, targets);
    const Fp8Matrix found = cross_entropy_to_fp8(logits.clone(), lse, targets, scale, scale.view(at::kInt));
    reference::cross_entropy_backward(exact, exact_lse, targets, scale.to(at::kDouble));
    EXPECT_EQ(found.factor.item<float>(), std::ldexp(1.0f, -20)) << "0.03 is 1.92 times 2^-6, codes go up to 1.75 times 2^15";
    const at::Tensor plain = to_fp8(exact.to(at::kBFloat16), Fp8::e5m2, {}, scale.view(at::kInt)).rows.to(at::kFloat) * found.factor;
    expect_as_exact(from_fp8(found, rows, at::kFloat), plain, exact, "by rows");
    const at::Tensor by_columns = from_fp8({.columns = found.columns, .factor = found.factor}, rows, at::kFloat);
    EXPECT_TRUE(at::equal(by_columns, from_fp8(found, rows, at::kFloat)));
    EXPECT_EQ(found.columns.view(at::kByte).narrow(1, rows, found.columns.size(1) - rows).sum().item<int64_t>(), 0);
    if (rows > 1) {
      EXPECT_EQ(found.rows[rows / 2].to(at::kFloat).abs().sum().item<float>(), 0);
    }
  }
}

// What kernels note of their results on the way is what a pass of its own finds.
TEST(Fp8OnCuda, CodesFromAKnownAmaxAreTheSame) {
  CAIRN_NEEDS_FP8();
  for (const int64_t width : {16, 144, 768, 2048, 4096, 16384}) {
    const int64_t rows = 75;
    const auto same = [&](const at::Tensor& x, const at::Tensor& amax, const char* what) {
      ASSERT_TRUE(amax.defined()) << what;
      const Fp8Matrix found = to_fp8(x.view({rows, -1}), Fp8::e5m2, {}, amax), expected = to_fp8(x.view({rows, -1}), Fp8::e5m2);
      EXPECT_EQ(found.factor.item<float>(), expected.factor.item<float>()) << what << " " << width;
      EXPECT_TRUE(same_codes(found.rows, expected.rows) && same_codes(found.columns, expected.columns)) << what << " " << width;
    };
    for (const double size : {1e-6, 1.0, 300.0}) {
      const at::Tensor x = on_gpu(normal({rows, width}, 1).mul_(size)).to(at::kBFloat16),
                       dy = on_gpu(normal({rows, width}, 2).mul_(size)).to(at::kBFloat16),
                       weight = on_gpu(normal({width}, 3)).to(at::kBFloat16);
      const at::Tensor y = poisoned({rows, width}, at::kBFloat16), dx = poisoned({rows, width}, at::kBFloat16), rstd = poisoned({rows});
      at::Tensor amax, amax_back;
      rms_norm(y, rstd, x, weight, 1e-5, &amax);
      same(y, amax, "norm");
      rms_norm_backward_input(dx, dy, x, weight, rstd, &dy, &amax_back);
      same(dx, amax_back, "norm gradient");
      const at::Tensor gate_up = on_gpu(normal({rows, 2 * width}, 4).mul_(size)).to(at::kBFloat16);
      at::Tensor largest_active, largest_gates;
      swiglu(y, gate_up, &largest_active);
      same(y, largest_active, "swiglu");
      const at::Tensor dgate_up = poisoned({rows, 2 * width}, at::kBFloat16);
      swiglu_backward(dgate_up, dy, gate_up, nullptr, &largest_gates);
      same(dgate_up, largest_gates, "swiglu gradient");
    }
  }
}

TEST(Fp8OnCuda, WhatIsNotFiniteShows) {
  CAIRN_NEEDS_FP8();
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const at::Tensor x = on_gpu(at::ones({300, 256}, at::kBFloat16));
    x[271][130] = bad;
    const Fp8Matrix made = to_fp8(x, Fp8::e4m3), w = to_fp8(on_gpu(at::ones({32, 256}, at::kBFloat16)), Fp8::e4m3);
    EXPECT_TRUE(std::isnan(made.factor.item<float>())) << bad;
    const at::Tensor y = poisoned({300, 32}, at::kBFloat16);
    linear(y, made, w);
    EXPECT_TRUE(at::isnan(y).any().item<bool>()) << bad;
  }
}

TEST(Fp8OnCuda, ProductsAreThoseOfWhatTheCodesStandFor) {
  CAIRN_NEEDS_FP8();
  for (const auto& [rows, in, out] :
       std::vector<std::tuple<int64_t, int64_t, int64_t>>{{1, 16, 16}, {37, 48, 32}, {512, 768, 2304}, {1000, 256, 144}}) {
    const at::Tensor x = on_gpu(normal({rows, in}, 1)).to(at::kBFloat16), w = on_gpu(normal({out, in}, 2)).to(at::kBFloat16),
                     dy = on_gpu(normal({rows, out}, 3).mul_(1e-4)).to(at::kBFloat16);
    const Fp8Matrix x8 = to_fp8(x, Fp8::e4m3), w8 = to_fp8(w, Fp8::e4m3), dy8 = to_fp8(dy, Fp8::e5m2);
    const at::Tensor ex = from_fp8(x8, rows, at::kDouble), ew = from_fp8(w8, out, at::kDouble), edy = from_fp8(dy8, rows, at::kDouble);
    const auto near = [&](const at::Tensor& found, const at::Tensor& exact, double tolerance, const char* what) {
      EXPECT_LE((found.to(at::kDouble) - exact).norm().item<double>(), tolerance * exact.norm().item<double>())
          << what << " " << rows << " x " << in << " x " << out;
    };
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      // bf16 rounds once; sums inside the tensor cores keep 14 bits or so at the worst.
      const double tolerance = type == at::kBFloat16 ? 4e-3 : 1e-3;
      const at::Tensor y = poisoned({rows, out}, type), dx = poisoned({rows, in}, type), dw = poisoned({out, in}, type);
      linear(y, x8, w8);
      near(y, at::matmul(ex, ew.t()), tolerance, "y");
      linear_backward_input(dx, dy8, w8);
      near(dx, at::matmul(edy, ew), tolerance, "dx");
      linear_backward_weight(dw, dy8, x8);
      near(dw, at::matmul(edy.t(), ex), tolerance, "dw");
      linear_backward_weight(dw, dy8, x8, /*accumulate=*/true);
      near(dw, at::matmul(edy.t(), ex) * 2, 1.5 * tolerance, "dw twice");
      const at::Tensor onto = on_gpu(normal({rows, out}, 4)).to(type);
      linear(y, x8, w8, &onto);
      near(y, at::matmul(ex, ew.t()) + onto.to(at::kDouble), tolerance, "onto");
    }
  }
}

}  // namespace
}  // namespace cairn::kernels
