#include "kernels/matvec.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace cairn::kernels {
namespace {

std::vector<float> numbers(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  base::Random(seed).fill_normal(values);
  return values;
}

struct Case {
  int64_t rows, in, out;
  bool fan_in_fan_out, bias, add;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int64_t rows : {1, 2, 3, 4, 5, 9})
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{1, 1}, {31, 7}, {32, 64}, {97, 131}, {352, 33}})
      for (bool fan_in_fan_out : {false, true}) all.push_back({rows, in, out, fan_in_fan_out, (rows + in) % 2 == 0, out % 2 == 0});
  return all;
}

TEST(Matvec, GivesThePlainProductsAndTouchesNothingElse) {
  for (const Case& c : cases()) {
    const int64_t x_stride = c.in + 3, y_stride = c.out + 2;
    const std::vector<float> w = numbers(c.in * c.out, 1), bias = numbers(c.out, 2), x = numbers(c.rows * x_stride, 3);
    const WeightView view{w.data(), c.bias ? bias.data() : nullptr, c.out, c.in, c.fan_in_fan_out};
    std::vector<float> found = numbers(c.rows * y_stride, 4), expected = found;
    matvec(found.data(), y_stride, x.data(), x_stride, c.rows, view, 0, c.out, c.add);
    reference::matvec(expected.data(), y_stride, x.data(), x_stride, c.rows, view, 0, c.out, c.add);
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], 1e-6 * (8 + static_cast<double>(c.in)))
          << c.rows << " x " << c.in << " x " << c.out << " at " << i;
  }
}

TEST(Matvec, IsBitwiseIdenticalForAnyDivisionOfRowsAndOutputs) {
  for (const Case& c : cases()) {
    const std::vector<float> w = numbers(c.in * c.out, 1), x = numbers(c.rows * c.in, 3);
    const WeightView view{w.data(), nullptr, c.out, c.in, c.fan_in_fan_out};
    std::vector<float> whole(static_cast<size_t>(c.rows * c.out)), parts = whole;
    matvec(whole.data(), c.out, x.data(), c.in, c.rows, view, 0, c.out);
    for (int64_t row = 0; row < c.rows; ++row)
      for (int64_t begin = 0; begin < c.out; begin += 5)
        matvec(parts.data() + row * c.out, c.out, x.data() + row * c.in, c.in, 1, view, begin, std::min(begin + 5, c.out));
    EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0) << c.rows << " x " << c.in << " x " << c.out;
  }
}

}  // namespace
}  // namespace cairn::kernels
