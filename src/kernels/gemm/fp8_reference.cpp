#include "kernels/fp8.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/aten.h"
#include "kernels/gemm.h"

namespace cairn::kernels {
namespace {

at::ScalarType type_of(Fp8 code) { return code == Fp8::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2; }

// The exponent of the least factor that fits amax. The largest codes of both formats are 1.75 times a power of two.
int exponent_for(float amax, Fp8 code) {
  int exponent = 0;
  const float fraction = 2 * std::frexp(amax, &exponent);  // 1 to 2
  exponent = std::max(exponent - 1, -126) + (fraction > 1.75F ? 1 : 0) - (code == Fp8::e4m3 ? 8 : 15);
  return std::clamp(exponent, -126, 126);
}

}  // namespace

Fp8Matrix reference::to_fp8(const at::Tensor& x, Fp8 code, const Fp8Forms& forms) {
  const at::Tensor wide = x.to(at::kFloat);
  const float amax = x.size(0) == 0 ? 0 : wide.abs().max().item<float>();
  const int exponent = amax > 0 && std::isfinite(amax) ? exponent_for(amax, code) : 0;
  const at::Tensor scaled = wide * std::ldexp(1.0F, -exponent);
  Fp8Matrix made{
      .factor = at::full({1}, std::isfinite(amax) ? std::ldexp(1.0F, exponent) : std::numeric_limits<float>::quiet_NaN(), wide.options())};
  if (forms.rows) made.rows = scaled.to(type_of(code));
  if (forms.columns) {
    const int64_t filled = (x.size(0) + 15) / 16 * 16;
    const at::Tensor columns = at::zeros({x.size(1), filled}, wide.options());
    columns.narrow(1, 0, x.size(0)).copy_(scaled.t());
    made.columns = columns.to(type_of(code));
  }
  return made;
}

at::Tensor from_fp8(const Fp8Matrix& x, int64_t rows, at::ScalarType type) {
  const at::Tensor codes = x.rows.defined() ? x.rows : x.columns.narrow(1, 0, rows).t();
  return (codes.to(at::kFloat) * x.factor).to(type);
}

void reference::fp8_gemm(const at::Tensor& y, const at::Tensor& x, const at::Tensor& x_factor, const at::Tensor& w,
                         const at::Tensor& w_factor, const at::Tensor* onto) {
  const auto wide = [](const at::Tensor& codes, const at::Tensor& factor) { return codes.to(at::kFloat).mul_(factor); };
  const at::Tensor sums =
      onto ? onto->to(at::kFloat, /*non_blocking=*/false, /*copy=*/true) : at::empty(y.sizes(), y.options().dtype(at::kFloat));
  kernels::linear(sums, wide(x, x_factor), wide(w, w_factor), onto ? &sums : nullptr);
  y.copy_(sums);
}

}  // namespace cairn::kernels
