#include "mesh/chunked_gradients.h"

#include <ATen/core/IListRef.h>
#include <gtest/gtest.h>

#include "kernels/aten.h"
#include "kernels/fp8.h"
#include "mesh/flat_gradients.h"
#include "mesh/trainable_gradients.h"

namespace cairn::mesh {
namespace {

constexpr int64_t kOut = 32, kIn = 16, kRows = 4, kParts = 50;

FlatLayout matrix_and_bias() {
  FlatLayout layout;
  layout.append("weight", {kOut, kIn});
  layout.append("bias", {kOut});
  return layout;
}

struct Parts {
  std::vector<at::Tensor> in, dout;  // [rows, ...] of each
  at::Tensor weight, bias;           // the gradients, in double
};

Parts random_parts() {
  at::manual_seed(1);
  Parts made;
  made.weight = at::zeros({kOut, kIn}, at::kDouble), made.bias = at::zeros({kOut}, at::kDouble);
  for (int64_t i = 0; i < kParts; ++i) {
    // All of one sign, so that the sum outgrows its parts, which rounding then loses.
    made.in.push_back(at::rand({kRows, kIn}).to(at::kBFloat16)), made.dout.push_back(at::rand({kRows, kOut}).to(at::kBFloat16));
    made.weight += at::matmul(made.dout.back().to(at::kDouble).t(), made.in.back().to(at::kDouble));
    made.bias += made.dout.back().to(at::kDouble).sum(0);
  }
  return made;
}

at::Tensor summed(const Parts& parts, at::ScalarType type, bool at_once_in_the_sink, std::vector<int64_t>* announced = nullptr) {
  const FlatLayout layout = matrix_and_bias();
  FlatGradients sink(layout, at::full({layout.elements}, 99.0, type), {1, 1});
  sink.begin(1, [&](int64_t index) {
    if (announced) announced->push_back(index);
  });
  const auto give = [&](Gradients& into) {
    for (int64_t i = 0; i < kParts; ++i) {
      const auto at = static_cast<size_t>(i);
      into.outer({0}, parts.in[at], parts.dout[at]);
      into.add({1}, parts.dout[at].sum({0}, /*keepdim=*/false, at::kFloat));
    }
  };
  if (at_once_in_the_sink) {
    sink.expect_more({0}, kParts - 1), sink.expect_more({1}, kParts - 1);
    give(sink);
  } else {
    ChunkedGradients in_parts(sink, {{0}, {1}}, kParts);
    give(in_parts);
    in_parts.flush();
  }
  sink.finish();
  return sink.flat().to(at::kDouble);
}

double furthest(const at::Tensor& flat, const Parts& parts) {
  const at::Tensor expected = at::cat({parts.weight.flatten(), parts.bias});
  return ((flat - expected) / expected).abs().max().item<double>();
}

TEST(ChunkedGradients, ForANarrowSinkAreRoundedOnce) {
  const Parts parts = random_parts();
  std::vector<int64_t> announced;
  EXPECT_LT(furthest(summed(parts, at::kBFloat16, false, &announced), parts),
            0.0048);  // half of a last place is 0.0039; a CPU rounds products of bf16 as well
  EXPECT_EQ(announced.size(), 2u) << "each is complete once";
  EXPECT_GT(furthest(summed(parts, at::kBFloat16, true), parts), 0.008) << "as they come, they would be rounded each time";
}

TEST(ChunkedGradients, ForAWideSinkAreHandedOnAsTheyCome) {
  const Parts parts = random_parts();
  std::vector<int64_t> announced;
  const at::Tensor found = summed(parts, at::kFloat, false, &announced);
  EXPECT_TRUE(at::equal(found, summed(parts, at::kFloat, true)));
  EXPECT_LT(furthest(found, parts), 0.002);
  EXPECT_EQ(announced.size(), 2u);
}

TEST(ChunkedGradients, OfCodesAddUpLikewise) {
  const Parts parts = random_parts();
  const FlatLayout layout = matrix_and_bias();
  FlatGradients sink(layout, at::zeros({layout.elements}, at::kBFloat16), {1, 0});
  sink.begin(1, nullptr);
  ChunkedGradients in_parts(sink, {{0}}, 2);
  at::Tensor expected = at::zeros({kOut, kIn});
  for (size_t i = 0; i < 2; ++i) {
    const kernels::Fp8Matrix in = kernels::to_fp8(parts.in[i], kernels::Fp8::e4m3),
                             dout = kernels::to_fp8(parts.dout[i], kernels::Fp8::e5m2);
    expected += at::matmul(kernels::from_fp8(dout, kRows, at::kFloat).t(), kernels::from_fp8(in, kRows, at::kFloat));
    in_parts.outer_fp8({0}, in, dout);
  }
  in_parts.flush();
  EXPECT_LT(((layout.view(sink.flat(), {0}).to(at::kFloat) - expected) / expected).abs().max().item<double>(), 0.00393);
}

TEST(ChunkedGradients, OfWhatIsNotTrainedGoNowhere) {
  const Parts parts = random_parts();
  const FlatLayout all = matrix_and_bias(), chosen = trainable_layout(all, {false, true});
  FlatGradients sink(chosen, at::zeros({chosen.elements}, at::kBFloat16), {1});
  sink.begin(1, nullptr);
  const std::unique_ptr<Gradients> some = make_trainable_gradients(all, {false, true}, sink);
  EXPECT_TRUE(some->accumulates_in_fp32({0}));
  EXPECT_FALSE(some->accumulates_in_fp32({1}));
  ChunkedGradients in_parts(*some, {{0}, {1}}, 2);
  for (size_t i = 0; i < 2; ++i) {
    in_parts.outer({0}, parts.in[i], parts.dout[i]);
    in_parts.add({1}, at::ones({kOut}));
  }
  in_parts.flush();
  sink.finish();
  EXPECT_TRUE(at::equal(sink.flat(), at::full({kOut}, 2, at::kBFloat16)));
}

}  // namespace
}  // namespace cairn::mesh
