// Products of a weight with a few rows, as decoding needs them: weights are streamed once, from where they lie.
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

// Outputs begin .. end-1 of y = x w^T + b for `rows` rows of x; with `add`, of y += x w^T + b. Serial: the threads of a caller each take
// a part of the outputs. Each number is the same to the bit however outputs and rows are shared out.
void matvec(float* y, int64_t y_stride, const float* x, int64_t x_stride, int64_t rows, const WeightView& w, int64_t begin, int64_t end,
            bool add = false);

namespace reference {
void matvec(float* y, int64_t y_stride, const float* x, int64_t x_stride, int64_t rows, const WeightView& w, int64_t begin, int64_t end,
            bool add = false);
}  // namespace reference

}  // namespace cairn::kernels
