// The parameter and gradients that tests/optim/torch_reference.py uses too: sin(i + 1), and cos((i + 1) t) / 2 at step t.
#pragma once
#include <cmath>
#include <vector>

#include "kernels/aten.h"
#include "optim/optimizer.h"
#include "optim/options.h"

namespace cairn::optim {

inline double series_start(int64_t i) { return std::sin(static_cast<double>(i + 1)); }
inline double series_gradient(int64_t i, int64_t step) { return std::cos(static_cast<double>((i + 1) * step)) / 2; }

// One piece that walks along the series.
struct Walk {
  ParameterPiece piece;

  explicit Walk(std::vector<int64_t> shape, const std::string& name = "w") {
    piece = {name, at::empty(shape, at::kFloat), at::empty(shape, at::kFloat), /*decays=*/true, /*hidden=*/shape.size() == 2};
    for (int64_t i = 0; i < piece.parameter.numel(); ++i)
      piece.parameter.mutable_data_ptr<float>()[i] = static_cast<float>(series_start(i));
  }
  void gradient_at(int64_t step) const {
    for (int64_t i = 0; i < piece.gradient.numel(); ++i)
      piece.gradient.mutable_data_ptr<float>()[i] = static_cast<float>(series_gradient(i, step));
  }
  void steps(Optimizer& rule, int64_t first, int64_t last, double learning_rate) const {
    for (int64_t step = first; step <= last; ++step) {
      gradient_at(step);
      rule.update(0, {.step = step, .learning_rate = learning_rate});
    }
  }
  std::vector<double> values() const {
    const float* from = piece.parameter.const_data_ptr<float>();
    return {from, from + piece.parameter.numel()};
  }
};

}  // namespace cairn::optim
