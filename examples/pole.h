// A pole on a cart that is pushed to the left or to the right (Barto, Sutton and Anderson, 1983).
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

#include "base/random.h"

namespace cairn::examples {

// An episode lasts until the pole leans too far, the cart is too far away, or kLongest pushes; its return is the number of pushes.
struct Pole {
  static constexpr int64_t kLongest = 100;

  std::array<float, 4> state{};  // place and speed of the cart, angle and speed of the pole
  int64_t age = 0;

  void start(const base::Random& random) {
    for (size_t i = 0; i < 4; ++i) state[i] = 0.1F * random.uniform_float(i) - 0.05F;
    age = 0;
  }
  // Pushes to the left (0) or right (1) for 20 ms; false: the episode is over.
  bool push(int64_t action) {
    auto& [x, v, angle, turn] = state;
    const float force = action == 1 ? 10.0F : -10.0F, sine = std::sin(angle), cosine = std::cos(angle);
    const float drive = (force + 0.05F * turn * turn * sine) / 1.1F;
    const float bend = (9.8F * sine - cosine * drive) / (0.5F * (4.0F / 3 - 0.1F * cosine * cosine / 1.1F));
    const float gain = drive - 0.05F * bend * cosine / 1.1F;
    x += 0.02F * v, v += 0.02F * gain, angle += 0.02F * turn, turn += 0.02F * bend;
    return ++age < kLongest && std::abs(x) < 2.4F && std::abs(angle) < 0.2095F;
  }
};

}  // namespace cairn::examples
