#include "optim/surgery.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/aten.h"

namespace cairn::optim {
namespace {

at::Tensor rows_of(std::vector<float> values, int64_t width) {
  return at::from_blob(values.data(), {static_cast<int64_t>(values.size()) / width, width}).clone();
}

at::Tensor after(const Rearrangement& change, const at::Tensor& tensor) { return rearranged(change, {tensor})[0]; }

TEST(Surgery, PermutesRowsAndColumns) {
  const at::Tensor matrix = rows_of({1, 2, 3, 4, 5, 6}, 2);
  EXPECT_TRUE(at::equal(after(permutation("w", 0, {2, 0, 1}), matrix), rows_of({5, 6, 1, 2, 3, 4}, 2)));
  EXPECT_TRUE(at::equal(after(permutation("w", 1, {1, 0}), matrix), rows_of({2, 1, 4, 3, 6, 5}, 2)));
}

TEST(Surgery, InsertsAndDeletesWithoutAChangeOfShape) {
  const at::Tensor matrix = rows_of({1, 2, 3, 4, 5, 6, 7, 8}, 2);
  EXPECT_TRUE(at::equal(after(insertion("w", 0, 4, 1, 2), matrix), rows_of({1, 2, 0, 0, 0, 0, 3, 4}, 2)));
  EXPECT_TRUE(at::equal(after(deletion("w", 0, 4, {2, 0}), matrix), rows_of({3, 4, 7, 8, 0, 0, 0, 0}, 2)));
}

TEST(Surgery, SwapsRowsBetweenTensors) {
  const at::Tensor a = rows_of({1, 2, 3, 4}, 2), b = rows_of({5, 6, 7, 8, 9, 10}, 2);
  const std::vector<at::Tensor> swapped = rearranged(swap_rows("a", 2, 1, "b", 3, 2), {a, b});
  EXPECT_TRUE(at::equal(swapped[0], rows_of({1, 2, 9, 10}, 2)));
  EXPECT_TRUE(at::equal(swapped[1], rows_of({5, 6, 7, 8, 3, 4}, 2)));
  EXPECT_TRUE(at::equal(a, rows_of({1, 2, 3, 4}, 2))) << "the source was changed";
}

TEST(Surgery, RefusesShapesThatDoNotFit) {
  const at::Tensor a = at::zeros({2, 2}), b = at::zeros({2, 3});
  EXPECT_ANY_THROW(rearranged(swap_rows("a", 2, 0, "b", 2, 0), {a, b}));
  EXPECT_ANY_THROW(rearranged(permutation("a", 0, {0, 1, 2}), {a}));
  EXPECT_ANY_THROW(rearranged(permutation("a", 0, {0, 2}), {a}));
}

}  // namespace
}  // namespace cairn::optim
