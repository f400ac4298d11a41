// Values that a GPU draws are those of the CPU.
#include "base/random.h"
#include "kernels/fill_normal.h"
#include "kernels/on_gpu.h"

namespace cairn::kernels {
namespace {

TEST(FillNormalOnCuda, HasTheBitsOfTheCpu) {
  CAIRN_NEEDS_GPU();
  const base::Random random = base::Random(3).for_name("layers.0.mlp.up_proj.weight");
  for (const int64_t count : {1, 3, 4, 1013, 3000001})
    for (const int64_t first : {0, 1, 2, 3, 777, (1 << 30) + 5}) {
      const at::Tensor expected = at::empty({count}), found = poisoned({count}), low = poisoned({count}, at::kBFloat16);
      fill_normal(expected, random, first, 0.02);
      fill_normal(found, random, first, 0.02);
      fill_normal(low, random, first, 0.02);
      EXPECT_TRUE(at::equal(found.cpu(), expected)) << count << " from " << first;
      EXPECT_TRUE(at::equal(low.cpu(), expected.to(at::kBFloat16))) << count << " from " << first;
    }
}

// In bf16 most numbers are made in single precision, and those that this leaves open in double: about one in 2,800.
TEST(FillNormalOnCuda, IsTheExactNumberRoundedForAQuarterOfABillion) {
  CAIRN_NEEDS_GPU();
  constexpr int64_t kCount = int64_t{1} << 26;
  const base::Random random = base::Random(11).for_name("all");
  const at::Tensor exact = poisoned({kCount}), low = poisoned({kCount}, at::kBFloat16);
  for (int64_t first = 0; first < 4 * kCount; first += kCount) {
    fill_normal(exact, random, first, 0.013);
    fill_normal(low, random, first, 0.013);
    EXPECT_TRUE(at::equal(low, exact.to(at::kBFloat16))) << "from " << first;
  }
}

TEST(FillNormalOnCuda, FillsAMemoryThatIsNotAligned) {
  CAIRN_NEEDS_GPU();
  const base::Random random(4);
  for (const at::ScalarType type : kKernelTypes)
    for (const int64_t askew : {1, 2, 3}) {
      const at::Tensor room = poisoned({1013 + 8}, type), expected = at::empty({1013}, type);
      fill_normal(room.narrow(0, askew, 1013), random, 0, 1);
      fill_normal(expected, random, 0, 1);
      EXPECT_TRUE(at::equal(room.narrow(0, askew, 1013).cpu(), expected));
      EXPECT_EQ(room.isnan().sum().item<int64_t>(), 8) << "written beyond its ends";
    }
}

}  // namespace
}  // namespace cairn::kernels
