#pragma once
#include <cmath>
#include <cstdint>

namespace cairn::evaluate {

// An accuracy with its standard error.
struct Fraction {
  int64_t right = 0;
  int64_t of = 0;

  void add(bool is_right) {
    right += is_right ? 1 : 0;
    ++of;
  }
  double value() const { return of == 0 ? 0 : static_cast<double>(right) / static_cast<double>(of); }
  // Of the mean, with the sample variance (n - 1), as in lm-eval; 0 for fewer than two items.
  double standard_error() const { return of < 2 ? 0 : std::sqrt(value() * (1 - value()) / static_cast<double>(of - 1)); }
};

}  // namespace cairn::evaluate
