// What tests of selection share: rows of unit length, numbers in order, and the words of a refusal.
#pragma once
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/aten.h"

namespace cairn::data {

inline std::string refusal_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "accepted";
}

inline at::Tensor unit_rows(int64_t rows, int64_t dim, uint64_t seed) {
  const at::Tensor made = at::empty({rows, dim});
  base::Random(seed).fill_normal({made.mutable_data_ptr<float>(), static_cast<size_t>(made.numel())});
  return made / made.norm(2, 1, true);
}

inline std::vector<int64_t> first_numbers(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

inline int64_t sum_of(const std::vector<int64_t>& numbers) { return std::accumulate(numbers.begin(), numbers.end(), int64_t{0}); }

}  // namespace cairn::data
