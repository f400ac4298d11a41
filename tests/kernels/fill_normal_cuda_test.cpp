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

}  // namespace
}  // namespace cairn::kernels
