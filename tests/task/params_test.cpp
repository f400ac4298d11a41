#include "task/params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/aten.h"
#include "task/mlp.h"
#include "task/task.h"

namespace cairn::task {
namespace {

using testing::HasSubstr;

std::string complaint(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "accepted";
}

TEST(Params, RefuseUnknownAndRepeatedNames) {
  const Params params({{"weight", at::ones({2})}, {"bias", at::zeros({1})}});
  EXPECT_TRUE(params["bias"].equal(at::zeros({1})));
  EXPECT_EQ(complaint([&] { params["wieght"]; }), "unknown parameter \"wieght\": did you mean \"weight\"?");
  EXPECT_THAT(complaint([] { Params({{"a", at::ones({1})}, {"a", at::ones({1})}}); }), HasSubstr("two parameters are called \"a\""));
  EXPECT_THAT(complaint([&] { params.with({at::ones({1})}); }), HasSubstr("1 tensors for 2 parameters"));
}

// f = x^3 y: df/dx = 3 x^2 y, d2f/dx2 = 6 x y; z is not used.
TEST(Gradients, AreTakenTwiceAndAreZeroWhereNothingDepends) {
  const Params at(
      {{"x", at::full({}, 2.0).requires_grad_()}, {"y", at::full({}, 5.0).requires_grad_()}, {"z", at::ones({3}).requires_grad_()}});
  const Params first = gradients(at["x"].pow(3) * at["y"], at, /*differentiable=*/true);
  EXPECT_FLOAT_EQ(first["x"].item<float>(), 60);
  EXPECT_FLOAT_EQ(first["y"].item<float>(), 8);
  EXPECT_TRUE(first["z"].equal(at::zeros({3})));
  EXPECT_FLOAT_EQ(gradients(first["x"], at)["x"].item<float>(), 60);
}

TEST(Repeated, KeepsTheGradientsOfExamplesApart) {
  const Params params = mlp({3, 5, 2}, base::Random(1));
  const at::Tensor x = normal(base::Random(2), {7, 3});
  const Params rows = repeated(params, 7);
  const Params together = gradients(run_mlp(rows, x.unsqueeze(1)).square().sum(), rows);
  at::Tensor squares = squares_by_row(together);
  for (int64_t i = 0; i < 7; ++i) {
    const Params own = params.map([](const at::Tensor& t) { return t.detach().clone().requires_grad_(); });
    const Params alone = gradients(run_mlp(own, x.narrow(0, i, 1)).square().sum(), own);
    double sum = 0;
    for (const mesh::NamedTensor& one : alone.all()) {
      EXPECT_TRUE(at::allclose(together[one.name][i], one.tensor, 1e-5, 1e-5)) << one.name << " of " << i;
      sum += one.tensor.square().sum().item<double>();
    }
    EXPECT_NEAR(squares[i].item<double>(), sum, 1e-4 * sum);
  }
}

TEST(Average, WeighsEach) {
  const Params a({{"x", at::full({2}, 1.0)}}), b({{"x", at::full({2}, 4.0)}});
  const std::vector<Params> each{a, b};
  EXPECT_TRUE(at::allclose(average(each, std::vector<double>{1, 2})["x"], at::full({2}, 3.0)));
  EXPECT_THAT(complaint([&] { average(each, std::vector<double>{1}); }), HasSubstr("2 sets of parameters by 1 weights"));
}

TEST(Mlp, StartsFromTheNumbersItWasGiven) {
  const Params one = mlp({4, 3, 2}, base::Random(7)), other = mlp({4, 3, 2}, base::Random(7), 0.01);
  EXPECT_TRUE(one["layers.0.weight"].equal(other["layers.0.weight"]));
  EXPECT_TRUE(at::allclose(one["layers.1.weight"] * 0.01, other["layers.1.weight"]));
  EXPECT_EQ(one["layers.1.bias"].sizes(), at::IntArrayRef({1, 2}));
  EXPECT_THAT(complaint([] { mlp({4}, base::Random(7)); }), HasSubstr("of 1 widths"));
}

TEST(BatchOf, RefusesFieldsOfUnequalLength) {
  EXPECT_EQ(batch_of({{"x", at::ones({3, 2})}, {"y", at::ones({3})}}).samples(), 3);
  EXPECT_THAT(complaint([] {
                batch_of({{"x", at::ones({3, 2})}, {"y", at::ones({4})}});
              }),
              HasSubstr("field \"y\" of a batch has 4 examples, \"x\" has 3"));
  EXPECT_THAT(complaint([] { batch_of({{"x", at::ones({})}}); }), HasSubstr("field \"x\" of a batch is a scalar"));
}

}  // namespace
}  // namespace cairn::task
