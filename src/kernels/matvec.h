// Matrix-vector products for decoding: a weight times a few rows. The weight is read once, in place.
#pragma once
#include <cstdint>

namespace cairn::kernels {

// A linear layer's weight, borrowed: [out, in], or [in, out] where fan_in_fan_out; contiguous.
struct WeightView {
  const float* data = nullptr;
  const float* bias = nullptr;  // [out]; may be null
  int64_t out = 0, in = 0;
  bool fan_in_fan_out = false;
};

// Computes outputs begin .. end-1 of y = x w^T + b for `rows` rows of x; with `add`, of y += x w^T + b. Serial: the caller's threads each
// take a range of outputs. Results are bitwise identical for any division of outputs and rows.
void matvec(float* y, int64_t y_stride, const float* x, int64_t x_stride, int64_t rows, const WeightView& w, int64_t begin, int64_t end,
            bool add = false);

namespace reference {
void matvec(float* y, int64_t y_stride, const float* x, int64_t x_stride, int64_t rows, const WeightView& w, int64_t begin, int64_t end,
            bool add = false);
}  // namespace reference

}  // namespace cairn::kernels
