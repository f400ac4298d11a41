// What a lazy save costs, before it is made. With S bytes to save, a ring of C, copies at b1 and writes at b2 bytes a second, and W seconds
// from one update to the next:
//
//   T = S / b1                                   all copies, while the ring takes them: S <= C, or b1 <= b2, or S <= b1 C / (b1 - b2)
//   T = t_f + (S - b1 t_f) / b2                  t_f = C / (b1 - b2): when the ring is full; then copies are as slow as writes
//   stall = max(0, T - W)
//   sustainable interval = ceil(S / b2 / step) steps
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace cairn::train {

struct LazyCosts {
  double state_bytes = 0, ring_bytes = 0;
  double copy_rate = 0, write_rate = 0;  // bytes a second
  double window_s = 0;                   // from one update to the next
  double step_s = 0;
};

struct LazyForecast {
  double copy_s = 0;   // until every piece is in host memory
  double stall_s = 0;  // of training, for each save
  double write_s = 0;  // until everything is written
  int64_t sustainable_steps = 1;
};

inline LazyForecast forecast(const LazyCosts& c) {
  LazyForecast found;
  const double s = c.state_bytes, b1 = c.copy_rate, b2 = c.write_rate;
  if (s <= 0 || b1 <= 0 || b2 <= 0) return found;
  if (s <= c.ring_bytes || b1 <= b2 || s <= b1 * c.ring_bytes / (b1 - b2)) {
    found.copy_s = s / b1;
  } else {
    const double fills_s = c.ring_bytes / (b1 - b2);
    found.copy_s = fills_s + (s - b1 * fills_s) / b2;
  }
  found.stall_s = std::max(0.0, found.copy_s - c.window_s);
  found.write_s = std::max(found.copy_s, s / b2);
  if (c.step_s > 0) found.sustainable_steps = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(found.write_s / c.step_s)));
  return found;
}

}  // namespace cairn::train
