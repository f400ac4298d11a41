// RMSNorm on a GPU is as exact as its plain form there, at any width and alignment.
#include "kernels/on_gpu.h"
#include "kernels/rms_norm.h"

namespace cairn::kernels {
namespace {

// Warps, blocks, packs that do not come out even, rows too long for registers, widths that no pack divides.
struct GpuNormCase {
  int64_t rows, embed, askew;
};
constexpr GpuNormCase kGpuNormCases[] = {{1, 1, 0},     {127, 96, 0}, {5, 257, 0},  {65, 768, 0},  {7, 768, 1},   {33, 1032, 0},
                                         {16, 2048, 0}, {3, 4096, 0}, {9, 5120, 0}, {2, 12000, 0}, {1000, 64, 0}, {0, 64, 0}};

struct GpuNormInputs {
  at::Tensor x, r, dy, add, weight;
  GpuNormInputs(const GpuNormCase& c, at::ScalarType type) {
    const auto make = [&](at::IntArrayRef sizes, uint64_t seed) { return askew(on_gpu(normal(sizes, seed, type)), c.askew); };
    x = make({c.rows, c.embed}, 1), r = make({c.rows, c.embed}, 2), dy = make({c.rows, c.embed}, 3), add = make({c.rows, c.embed}, 4);
    weight = make({c.embed}, 5);
  }
};

std::string norm_name(const char* what, const GpuNormCase& c, at::ScalarType type) {
  return fmt::format("{} of {} x {} + {}, {}", what, c.rows, c.embed, c.askew, c10::toString(type));
}

TEST(RmsNormOnCuda, IsAsExactAsPlainOperations) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : kKernelTypes)
    for (const GpuNormCase& c : kGpuNormCases) {
      const GpuNormInputs in(c, type);
      const at::Tensor y = poisoned({c.rows, c.embed}, type), rstd = poisoned({c.rows}), plain_y = y.clone(), plain_rstd = rstd.clone();
      const at::Tensor exact_y = at::empty_like(wide(y)), exact_rstd = wide(rstd).clone();
      rms_norm(y, rstd, in.x, in.weight, 1e-5);
      reference::rms_norm(plain_y, plain_rstd, in.x, in.weight, 1e-5);
      reference::rms_norm(exact_y, exact_rstd, wide(in.x), wide(in.weight), 1e-5);
      expect_as_exact(y, plain_y, exact_y, norm_name("y", c, type));
      expect_as_exact(rstd, plain_rstd, exact_rstd, norm_name("rstd", c, type));
      // In place: bitwise identical.
      const at::Tensor x = in.x.clone(), again = poisoned({c.rows});
      rms_norm(x, again, x, in.weight, 1e-5);
      if (c.askew == 0) {
        EXPECT_TRUE(bitwise_equal(x, y) && bitwise_equal(again, rstd)) << norm_name("in place", c, type);
      }
    }
}

TEST(RmsNormOnCuda, AddsTheResidualFirst) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : kKernelTypes)
    for (const GpuNormCase& c : kGpuNormCases) {
      const GpuNormInputs in(c, type);
      const at::Tensor y = poisoned({c.rows, c.embed}, type), sum = y.clone(), rstd = poisoned({c.rows});
      add_rms_norm(y, rstd, sum, in.x, in.r, in.weight, 1e-5);
      EXPECT_TRUE(at::equal(sum, in.x + in.r)) << norm_name("sum", c, type);
      const at::Tensor plain_y = at::empty_like(y), plain_rstd = at::empty_like(rstd);
      const at::Tensor exact_y = at::empty_like(wide(y)), exact_rstd = wide(rstd).clone();
      reference::rms_norm(plain_y, plain_rstd, sum, in.weight, 1e-5);
      reference::rms_norm(exact_y, exact_rstd, wide(sum), wide(in.weight), 1e-5);
      expect_as_exact(y, plain_y, exact_y, norm_name("y", c, type));
      expect_as_exact(rstd, plain_rstd, exact_rstd, norm_name("rstd", c, type));
      const at::Tensor into = in.r.clone();  // in place
      add_rms_norm(y, rstd, into, in.x, into, in.weight, 1e-5);
      EXPECT_TRUE(at::equal(into, sum)) << norm_name("in place", c, type);
    }
}

TEST(RmsNormOnCuda, GradientsAreAsExactAsPlainOperations) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : kKernelTypes)
    for (const GpuNormCase& c : kGpuNormCases) {
      const GpuNormInputs in(c, type);
      const at::Tensor rstd = on_gpu(normal({c.rows}, 6)).abs() + 0.5;
      for (const at::Tensor* add : {static_cast<const at::Tensor*>(nullptr), static_cast<const at::Tensor*>(&in.add)}) {
        const at::Tensor dx = poisoned({c.rows, c.embed}, type), plain = dx.clone(), exact = at::empty_like(wide(dx)),
                         wide_add = wide(in.add);
        rms_norm_backward_input(dx, in.dy, in.x, in.weight, rstd, add);
        reference::rms_norm_backward_input(plain, in.dy, in.x, in.weight, rstd, add);
        reference::rms_norm_backward_input(exact, wide(in.dy), wide(in.x), wide(in.weight), wide(rstd),
                                           add != nullptr ? &wide_add : nullptr);
        expect_as_exact(dx, plain, exact, norm_name("dx", c, type));
        if (add == nullptr || c.askew != 0) continue;
        const at::Tensor into = in.add.clone();  // in the place of what is added
        rms_norm_backward_input(into, in.dy, in.x, in.weight, rstd, &into);
        EXPECT_TRUE(bitwise_equal(into, dx)) << norm_name("in place", c, type);
      }
      for (const bool accumulate : {false, true}) {
        const at::Tensor start = accumulate ? on_gpu(normal({c.embed}, 7)) : poisoned({c.embed}), dw = start.clone(), again = start.clone();
        const at::Tensor plain = start.clone(), exact = wide(start).clone();
        rms_norm_backward_weight(dw, in.dy, in.x, rstd, accumulate);
        reference::rms_norm_backward_weight(plain, in.dy, in.x, rstd, accumulate);
        reference::rms_norm_backward_weight(exact, wide(in.dy), wide(in.x), wide(rstd), accumulate);
        expect_as_exact(dw, plain, exact, norm_name("dw", c, type));
        rms_norm_backward_weight(again, in.dy, in.x, rstd, accumulate);
        EXPECT_TRUE(bitwise_equal(again, dw)) << norm_name("dw a second time", c, type);
      }
    }
}

TEST(RmsNormOnCuda, AllGradientsInOnePassAreThoseOfSeveral) {
  CAIRN_NEEDS_GPU();
  constexpr GpuNormCase kMore[] = {{7000, 768, 0}, {900, 2048, 0}, {801, 4096, 0}, {4, 8192, 0}};
  std::vector<GpuNormCase> cases(std::begin(kGpuNormCases), std::end(kGpuNormCases));
  cases.insert(cases.end(), std::begin(kMore), std::end(kMore));
  for (const at::ScalarType type : kKernelTypes)
    for (const GpuNormCase& c : cases) {
      if (c.rows == 0) continue;
      const GpuNormInputs in(c, type);
      const at::Tensor y = poisoned({c.rows, c.embed}, type), rstd = poisoned({c.rows});
      rms_norm(y, rstd, in.x, in.weight, 1e-5);
      for (const at::Tensor* add : {static_cast<const at::Tensor*>(nullptr), &in.add}) {
        const at::Tensor dx = poisoned({c.rows, c.embed}, type), dw = poisoned({c.embed}), again = poisoned({c.rows, c.embed}, type);
        rms_norm_backward({dx, dw, &again}, in.dy, in.x, in.weight, rstd, add);
        const at::Tensor plain = poisoned({c.rows, c.embed}, type), exact = at::empty_like(wide(dx)), plain_dw = poisoned({c.embed}),
                         exact_dw = wide(dw).clone(), wide_add = add ? wide(*add) : at::Tensor();
        reference::rms_norm_backward_input(plain, in.dy, in.x, in.weight, rstd, add);
        reference::rms_norm_backward_input(exact, wide(in.dy), wide(in.x), wide(in.weight), wide(rstd), add ? &wide_add : nullptr);
        reference::rms_norm_backward_weight(plain_dw, in.dy, in.x, rstd);
        reference::rms_norm_backward_weight(exact_dw, wide(in.dy), wide(in.x), wide(rstd));
        if (c.embed > 1) expect_as_exact(dx, plain, exact, norm_name("dx", c, type));  // else its two terms leave nothing but roundings
        expect_as_exact(dw, plain_dw, exact_dw, norm_name("dw", c, type));
        if (c.askew == 0) {
          EXPECT_TRUE(bitwise_equal(again, y)) << norm_name("y again", c, type);
        }
        // Bitwise identical a second time, and in place.
        const at::Tensor place = in.dy.clone(), dw_again = poisoned({c.embed});
        rms_norm_backward({place, dw_again}, place, in.x, in.weight, rstd, add);
        if (c.askew == 0) {
          EXPECT_TRUE(bitwise_equal(place, dx) && bitwise_equal(dw_again, dw)) << norm_name("in place", c, type);
        }
      }
    }
}

}  // namespace
}  // namespace cairn::kernels
