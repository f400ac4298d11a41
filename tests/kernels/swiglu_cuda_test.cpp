// SwiGLU on a GPU is as exact as its plain form there, at any width and alignment.
#include "kernels/on_gpu.h"
#include "kernels/swiglu.h"

namespace cairn::kernels {
namespace {

struct GpuSwigluCase {
  int64_t rows, ff, askew;
};
constexpr GpuSwigluCase kGpuSwigluCases[] = {{1, 1, 0},    {3, 127, 0}, {127, 96, 0},  {7, 96, 3},   {5, 2048, 0},
                                             {2, 8192, 0}, {9, 520, 0}, {2, 14336, 0}, {300, 24, 0}, {0, 64, 0}};

std::string swiglu_name(const char* what, const GpuSwigluCase& c, at::ScalarType type) {
  return fmt::format("{} of {} x {} + {}, {}", what, c.rows, c.ff, c.askew, c10::toString(type));
}

TEST(SwigluOnCuda, IsAsExactAsPlainOperations) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : kKernelTypes)
    for (const GpuSwigluCase& c : kGpuSwigluCases) {
      const at::Tensor gate_up = askew(on_gpu(3 * normal({c.rows, 2 * c.ff}, 1)).to(type), c.askew);
      const at::Tensor y = poisoned({c.rows, c.ff}, type), plain = y.clone(), exact = at::empty_like(wide(y));
      swiglu(y, gate_up);
      reference::swiglu(plain, gate_up);
      reference::swiglu(exact, wide(gate_up));
      expect_as_exact(y, plain, exact, swiglu_name("y", c, type));
    }
}

TEST(SwigluOnCuda, GradientsAreAsExactAndMayTakeThePlaceOfTheirInputs) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : kKernelTypes)
    for (const GpuSwigluCase& c : kGpuSwigluCases) {
      const at::Tensor gate_up = askew(on_gpu(3 * normal({c.rows, 2 * c.ff}, 1)).to(type), c.askew),
                       dy = on_gpu(normal({c.rows, c.ff}, 2, type));
      const at::Tensor dgate_up = poisoned({c.rows, 2 * c.ff}, type), y = poisoned({c.rows, c.ff}, type), plain = dgate_up.clone(),
                       plain_y = y.clone(), exact = at::empty_like(wide(gate_up)), exact_y = at::empty_like(wide(y));
      swiglu_backward(dgate_up, dy, gate_up, &y);
      reference::swiglu_backward(plain, dy, gate_up, &plain_y);
      reference::swiglu_backward(exact, wide(dy), wide(gate_up), &exact_y);
      expect_as_exact(dgate_up, plain, exact, swiglu_name("dgate_up", c, type));
      expect_as_exact(y, plain_y, exact_y, swiglu_name("y", c, type));
      const at::Tensor again = poisoned({c.rows, 2 * c.ff}, type);
      swiglu_backward(again, dy, gate_up);
      EXPECT_TRUE(bitwise_equal(again, dgate_up)) << swiglu_name("without y", c, type);
      swiglu_backward(gate_up, dy, gate_up, &dy);
      EXPECT_TRUE(bitwise_equal(gate_up, dgate_up) && bitwise_equal(dy, y)) << swiglu_name("in place", c, type);
    }
}

TEST(SwigluOnCuda, LargeGatesStayFiniteAndNanStaysNan) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : kKernelTypes) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor gate_up = on_gpu(at::tensor({-1e4f, -90.0f, 90.0f, 1e4f, nan, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f}).to(type).view({1, 10}));
    const at::Tensor y = poisoned({1, 5}, type), dgate_up = poisoned({1, 10}, type), dy = on_gpu(at::ones({1, 5}, type));
    swiglu(y, gate_up);
    swiglu_backward(dgate_up, dy, gate_up);
    EXPECT_TRUE(at::equal(at::isfinite(y.cpu()), at::tensor({1, 1, 1, 1, 0}).to(at::kBool).view({1, 5})));
    EXPECT_TRUE(at::equal(at::isfinite(dgate_up.cpu()), at::tensor({1, 1, 1, 1, 0, 1, 1, 1, 1, 0}).to(at::kBool).view({1, 10})));
  }
}

}  // namespace
}  // namespace cairn::kernels
