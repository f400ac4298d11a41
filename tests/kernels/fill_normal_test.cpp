#include "kernels/fill_normal.h"

#include "base/random.h"
#include "kernels/closeness.h"

namespace cairn::kernels {
namespace {

TEST(FillNormal, GivesEveryPieceTheValuesOfItsElements) {
  const base::Random random = base::Random(3).for_name("layers.0.mlp.up_proj.weight");
  const at::Tensor whole = at::empty({40003}), piece = at::empty({1013});
  with_threads([&] {
    fill_normal(whole, random, 0, 0.02);
    for (int64_t first : {0, 1, 777, 16383}) {
      fill_normal(piece, random, first, 0.02);
      EXPECT_TRUE(at::equal(piece, whole.narrow(0, first, 1013)));
    }
  });
  EXPECT_EQ(whole[12345].item<float>(), 0.02f * random.normal(12345));
}

TEST(FillNormal, HasTheMeanAndDeviationAskedFor) {
  const at::Tensor x = at::empty({100000}, at::kDouble);
  fill_normal(x, base::Random(5), 0, 2.0);
  EXPECT_NEAR(x.mean().item<double>(), 0, 4 * 2.0 / std::sqrt(100000.0));  // four standard errors
  EXPECT_NEAR(x.std().item<double>(), 2.0, 4 * 2.0 / std::sqrt(2 * 100000.0));
}

TEST(FillNormal, RefusesATensorWithGaps) {
  const std::string error = error_of([] { fill_normal(at::empty({4, 6}).narrow(1, 0, 3), base::Random(1), 0, 1); });
  EXPECT_NE(error.find("[4, 3] that is not contiguous"), std::string::npos) << error;
}

}  // namespace
}  // namespace cairn::kernels
