#include "kernels/tensor_checksum.h"

#include <gtest/gtest.h>

#include "kernels/closeness.h"

namespace cairn::kernels {
namespace {

int64_t bits_of(const at::Tensor& x) { return tensor_checksum(x).item<int64_t>(); }

TEST(TensorChecksum, DependsOnTheBitsAndTheirOrder) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong, at::kByte}) {
    const at::Tensor x = (normal({5, 7}, 1) * 50).abs().to(type);
    EXPECT_EQ(bits_of(x), bits_of(x.clone())) << type;
    const at::Tensor changed = x.clone(), swapped = x.clone();
    changed[2][3] += 1;
    swapped[2][3] = x[4][1], swapped[4][1] = x[2][3];
    ASSERT_FALSE(at::equal(x, swapped)) << type;
    EXPECT_NE(bits_of(x), bits_of(changed)) << type;
    EXPECT_NE(bits_of(x), bits_of(swapped)) << type << ": values that changed places";
    EXPECT_EQ(bits_of(x.t()), bits_of(x.t().contiguous())) << type << ": in the order of its elements";
    EXPECT_NE(bits_of(x.t()), bits_of(x)) << type;
  }
  EXPECT_NE(bits_of(at::full({1}, 0.0)), bits_of(at::full({1}, -0.0))) << "bits, not values";
  EXPECT_EQ(bits_of(at::empty({0, 3})), 0);
  EXPECT_EQ(bits_of(at::full({}, 1.0)), bits_of(at::full({1}, 1.0)));
}

// Several slices, of which the last is short.
TEST(TensorChecksum, DistinguishesSlices) {
  const int64_t slice = 1 << 22;
  const at::Tensor x = at::arange(2 * slice + 3, at::kInt), swapped = x.clone();
  swapped.narrow(0, 0, slice).copy_(x.narrow(0, slice, slice));
  swapped.narrow(0, slice, slice).copy_(x.narrow(0, 0, slice));
  EXPECT_EQ(bits_of(x), bits_of(x.clone()));
  EXPECT_NE(bits_of(x), bits_of(swapped));
  const at::Tensor last = x.clone();
  last[2 * slice + 2] += 1;
  EXPECT_NE(bits_of(x), bits_of(last));
}

}  // namespace
}  // namespace cairn::kernels
