// What is made of the kernels that a profiler saw. That it sees them is tried on a GPU (OnGpu.*).
#include "train/report/kernel_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/refusal.h"

namespace cairn::train {
namespace {

TEST(KernelReport, CountsWhatRanAndWhenNothingDid) {
  // Two streams overlap from 30 to 40; nothing runs from 60 to 80.
  const KernelReport::Found found =
      KernelReport::tabulate({{"product", 0, 40}, {"norm", 80, 90}, {"copy", 30, 60}, {"product", 90, 100}}, 2);
  EXPECT_EQ(found.whole_ns, 100);
  EXPECT_EQ(found.busy_ns, 80);
  ASSERT_EQ(found.lines.size(), 3U);
  EXPECT_EQ(found.lines[0].kernel, "product");
  EXPECT_EQ(found.lines[0].count, 2);
  EXPECT_EQ(found.lines[0].ns, 50);
  EXPECT_EQ(found.lines[1].kernel, "copy");
  const std::string table = KernelReport::table(found, 1);
  EXPECT_THAT(table, testing::HasSubstr("(nothing ran)"));
  EXPECT_THAT(table, testing::HasSubstr("50.00 %      1.0  product"));
  EXPECT_THAT(table, testing::HasSubstr("(2 others)"));
  EXPECT_THAT(table, testing::Not(testing::HasSubstr("norm")));
}

TEST(KernelReport, NothingSeenIsSaid) {
  EXPECT_EQ(KernelReport::tabulate({}, 3).whole_ns, 0);
  EXPECT_THAT(KernelReport::table({}, 10), testing::HasSubstr("the run ended before"));
}

TEST(KernelReport, IsForGpus) {
  base::Recipe recipe = base::Recipe::parse("log = {kernels = true}", "kernels.toml");
  EXPECT_THAT(refusal_of(recipe), testing::HasSubstr("log.kernels = true: it is for GPUs"));
}

}  // namespace
}  // namespace cairn::train
