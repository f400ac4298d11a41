#include "data/samples/spirals.h"

#include <gtest/gtest.h>

#include "kernels/aten.h"

namespace cairn::data {
namespace {

TEST(Spirals, GiveASampleByItsIdAlone) {
  const auto spirals = make_spirals({.samples = 100, .classes = 3, .held_out_fraction = 0.2});
  mesh::Batch many, one;
  spirals->fill(std::vector<int64_t>{0, 5, 99}, many);
  spirals->fill(std::vector<int64_t>{5}, one);
  EXPECT_TRUE(at::equal(many.field("features")[1], one.field("features")[0]));
  EXPECT_TRUE(at::equal(many.field("labels"), at::tensor({0, 2, 0}, at::TensorOptions(at::kLong))));
  EXPECT_EQ(spirals->training(), (SampleRange{0, 80}));
  EXPECT_EQ(spirals->held_out(), (SampleRange{80, 20}));
}

TEST(Spirals, StayOnTheirArms) {
  const auto spirals = make_spirals({.samples = 30, .noise = 0});
  mesh::Batch batch;
  spirals->fill(std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}, batch);
  for (int64_t i = 0; i < 8; ++i) {
    const double x = batch.field("features")[i][0].item<double>(), y = batch.field("features")[i][1].item<double>();
    const double turns = 1.25 * std::hypot(x, y) + static_cast<double>(i % 3) / 3 - std::atan2(y, x) / (2 * M_PI);
    EXPECT_NEAR(turns, std::round(turns), 1e-5) << i;  // float coordinates
  }
}

}  // namespace
}  // namespace cairn::data
