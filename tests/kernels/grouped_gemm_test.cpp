// Grouped products against one plain product per group in double.
#include "kernels/grouped_gemm.h"

#include <numeric>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/aten.h"
#include "kernels/low_precision.h"

namespace cairn::kernels {
namespace {

struct GroupedCase {
  std::vector<int64_t> counts;
  int64_t in, out;
};

// Rows spread unevenly, groups without rows, groups of few rows, and more rows than one tile has.
const std::vector<GroupedCase> kGroupedCases{
    {{3}, 5, 7}, {{0, 1, 0, 4, 5}, 16, 33}, {{0, 0, 0}, 4, 3}, {{1, 1, 1, 1, 1, 1, 1}, 65, 300}, {{401, 2, 190, 0, 17}, 31, 129}};

struct GroupedInputs {
  at::Tensor x, w, dy;
  RowGroups groups;
};

GroupedInputs make_inputs(const GroupedCase& one, at::ScalarType type) {
  const int64_t rows = std::accumulate(one.counts.begin(), one.counts.end(), int64_t{0}), count = std::ssize(one.counts);
  at::Tensor x = at::randn({rows, one.in}).to(type), w = at::randn({count, one.out, one.in}).to(type),
             dy = at::randn({rows, one.out}).to(type);
  return {x, w, dy, RowGroups(one.counts)};
}

// Calls act(group, first row, rows).
template <class Act>
void each_group(const GroupedCase& one, const Act& act) {
  int64_t begin = 0;
  for (int64_t g = 0; g < std::ssize(one.counts); begin += one.counts[static_cast<size_t>(g++)])
    act(g, begin, one.counts[static_cast<size_t>(g)]);
}

double apart(const at::Tensor& found, const at::Tensor& expected) {
  return expected.numel() == 0 ? 0 : (found.to(at::kDouble) - expected).abs().max().item<double>();
}

class GroupedGemm : public testing::TestWithParam<at::ScalarType> {};

TEST_P(GroupedGemm, GivesEachGroupTheProductWithItsOwnWeight) {
  for (const GroupedCase& one : kGroupedCases) {
    const auto [x, w, dy, groups] = make_inputs(one, GetParam());
    const double tolerance = GetParam() == at::kDouble ? 1e-12 : GetParam() == at::kFloat ? 2e-4 : 0.4;
    at::Tensor y = at::full({x.size(0), one.out}, 99, x.options()), dx = at::full_like(x, 99);
    grouped_linear(y, x, w, groups);
    grouped_linear_backward_input(dx, dy, w, groups);
    each_group(one, [&](int64_t g, int64_t begin, int64_t count) {
      const at::Tensor weight = w[g].to(at::kDouble);
      EXPECT_LT(apart(y.narrow(0, begin, count), at::mm(x.narrow(0, begin, count).to(at::kDouble), weight.t())), tolerance) << g;
      EXPECT_LT(apart(dx.narrow(0, begin, count), at::mm(dy.narrow(0, begin, count).to(at::kDouble), weight)), tolerance) << g;
    });
  }
}

TEST_P(GroupedGemm, SumsTheWeightGradientOfEachGroup) {
  for (const GroupedCase& one : kGroupedCases) {
    const auto [x, w, dy, groups] = make_inputs(one, GetParam());
    const at::ScalarType wide = is_half_precision(x) ? at::kFloat : GetParam();
    const double tolerance = wide == at::kDouble ? 1e-12 : is_half_precision(x) ? 0.4 : 2e-4;
    const at::Tensor first = at::full(w.sizes(), 99, x.options().dtype(wide)), sum = at::ones(w.sizes(), first.options());
    grouped_linear_backward_weight(first, dy, x, groups);
    grouped_linear_backward_weight(sum, dy, x, groups, /*accumulate=*/true);
    each_group(one, [&](int64_t g, int64_t begin, int64_t count) {
      const at::Tensor expected = at::mm(dy.narrow(0, begin, count).to(at::kDouble).t(), x.narrow(0, begin, count).to(at::kDouble));
      EXPECT_LT(apart(first[g], expected), tolerance) << g;
      EXPECT_LT(apart(sum[g], expected + 1), tolerance) << g;
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Types, GroupedGemm, testing::Values(at::kFloat, at::kDouble, at::kBFloat16));

TEST(GroupedGemmRows, MayLieApart) {
  const GroupedCase one{{6, 0, 3}, 8, 5};
  const auto [x, w, dy, groups] = make_inputs(one, at::kFloat);
  const at::Tensor wide = at::randn({9, 20}), y = at::empty({9, 30});
  wide.narrow(1, 4, 8).copy_(x);
  grouped_linear(y.narrow(1, 7, 5), wide.narrow(1, 4, 8), w, groups);
  at::Tensor expected = at::empty({9, 5});
  grouped_linear(expected, x, w, groups);
  EXPECT_TRUE(at::equal(y.narrow(1, 7, 5), expected));
}

// Decoding: what a token gives depends neither on the other experts nor on the threads.
TEST(GroupedGemmRows, OfFewRowsAreTheSameForAnyNumberOfThreads) {
  const GroupedCase one{{1, 0, 2, 1}, 130, 700};
  const auto [x, w, dy, groups] = make_inputs(one, at::kFloat);
  const int threads = at::get_num_threads();
  at::Tensor alone = at::empty({4, 700}), together = at::empty({4, 700});
  at::set_num_threads(1);
  grouped_linear(alone, x, w, groups);
  at::set_num_threads(3);
  grouped_linear(together, x, w, groups);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(alone, together));
}

TEST(GroupedGemmRows, ThatDoNotAddUpAreRefused) {
  const at::Tensor x = at::randn({5, 4}), w = at::randn({2, 3, 4}), y = at::empty({5, 3});
  try {
    grouped_linear(y, x, w, RowGroups(std::vector<int64_t>{2, 2}));
    FAIL() << "counts of 4 for 5 rows";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("5 rows in groups that have 4 together"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cairn::kernels
