#include "mesh/flat_gradients.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/aten.h"

namespace cairn::mesh {
namespace {

FlatLayout two_matrices_and_a_vector() {
  FlatLayout layout;
  layout.append("a", {2, 3});
  layout.append("b", {1, 3});
  layout.append("c", {4});
  return layout;
}

TEST(FlatGradients, OverwritesFirstAndAddsAfterwards) {
  const FlatLayout layout = two_matrices_and_a_vector();
  FlatGradients sink(layout, at::full({13}, 99.0), {1, 1, 1});
  std::vector<int64_t> announced;
  sink.begin(2, [&](int64_t index) { announced.push_back(index); });
  const at::Tensor in = at::arange(6, at::kFloat).view({2, 3}), dout = at::arange(6, at::kFloat).view({2, 3});
  for (int pass = 0; pass < 2; ++pass) {
    sink.add({2}, at::ones({4}));
    EXPECT_EQ(announced.size(), pass == 0 ? 0u : 1u);
    sink.outer({0, 2}, in, dout);  // a and b as one matrix [3, 3]
  }
  EXPECT_EQ(announced, (std::vector<int64_t>{2, 1, 0}));
  EXPECT_TRUE(at::allclose(layout.view(sink.flat(), {0, 2}), 2 * dout.t().matmul(in)));
  EXPECT_TRUE(at::equal(layout.view(sink.flat(), {2}), at::full({4}, 2.0)));
  sink.finish();
  EXPECT_EQ(announced.size(), 3u);
}

TEST(FlatGradients, GivesZeroForWhatNothingReachedAndAnnouncesItLastFirst) {
  FlatGradients sink(two_matrices_and_a_vector(), at::full({13}, 99.0), {1, 1, 1});
  std::vector<int64_t> announced;
  sink.begin(0, [&](int64_t index) { announced.push_back(index); });  // a rank without samples
  sink.finish();
  EXPECT_EQ(announced, (std::vector<int64_t>{2, 1, 0}));
  EXPECT_EQ(sink.flat().abs().sum().item<float>(), 0);
}

TEST(FlatGradients, AddsTableRows) {
  FlatGradients sink(two_matrices_and_a_vector(), at::full({13}, 99.0), {1, 1, 1});
  sink.begin(1, nullptr);
  sink.add_rows({0}, at::tensor({1, 1, 0}, at::kLong), at::ones({3, 3}));
  EXPECT_TRUE(at::equal(two_matrices_and_a_vector().view(sink.flat(), {0}), at::tensor({1.f, 1.f, 1.f, 2.f, 2.f, 2.f}).view({2, 3})));
}

TEST(FlatGradients, RefusesMoreContributionsThanAreDue) {
  FlatGradients sink(two_matrices_and_a_vector(), at::zeros({13}), {1, 1, 1});
  sink.begin(1, nullptr);
  sink.add({2}, at::ones({4}));
  EXPECT_THROW(sink.add({2}, at::ones({4})), Error);
}

TEST(FlatGradients, NoticesAGradientThatStoppedHalfWay) {
  FlatGradients sink(two_matrices_and_a_vector(), at::zeros({13}), {2, 1, 1});
  sink.begin(1, nullptr);
  sink.add({0}, at::ones({2, 3}));
  try {
    sink.finish();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the gradient of a lacks 1 of 2 contributions"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cairn::mesh
