#include "kernels/matvec.h"

namespace cairn::kernels::reference {

void matvec(float* y, int64_t y_stride, const float* x, int64_t x_stride, int64_t rows, const WeightView& w, int64_t begin, int64_t end,
            bool add) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t o = begin; o < end; ++o) {
      double total = w.bias != nullptr ? w.bias[o] : 0.0f;
      for (int64_t i = 0; i < w.in; ++i)
        total += static_cast<double>(x[row * x_stride + i]) *
                 static_cast<double>(w.fan_in_fan_out ? w.data[i * w.out + o] : w.data[o * w.in + i]);
      float& to = y[row * y_stride + o];
      to = static_cast<float>(add ? static_cast<double>(to) + total : total);
    }
}

}  // namespace cairn::kernels::reference
