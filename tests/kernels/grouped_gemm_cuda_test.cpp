// libtorch's grouped product on a GPU against plain products of each group in double.
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/aten.h"
#include "kernels/gemm/fused_gemm_cuda.h"
#include "kernels/gemm/grouped_cuda.h"
#include "kernels/grouped_gemm.h"
#include "kernels/on_gpu.h"

namespace cairn::kernels {
namespace {

// Groups without rows at both ends and in between, and numbers of rows that divide by nothing.
const std::vector<std::vector<int64_t>> kCountsOnGpu{{0, 37, 0, 1, 501, 0}, {128}, {3, 0, 0, 259}, {64, 64, 64, 64}};

at::Tensor product_of_groups(const at::Tensor& x, const at::Tensor& w, const std::vector<int64_t>& counts) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (size_t g = 0; g < counts.size(); begin += counts[g++])
    parts.push_back(at::mm(x.narrow(0, begin, counts[g]).to(at::kDouble), w[static_cast<int64_t>(g)].to(at::kDouble)));
  return at::cat(parts);
}

TEST(GroupedGemmOnGpu, GivesEachGroupTheProductWithItsOwnWeight) {
  CAIRN_NEEDS_GPU();
  constexpr int64_t kIn = 72, kOut = 136;
  for (const std::vector<int64_t>& counts : kCountsOnGpu) {
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0}), groups = std::ssize(counts);
    const at::Tensor x = at::randn({rows, kIn}).to(at::kBFloat16), w = at::randn({groups, kOut, kIn}).to(at::kBFloat16),
                     dy = at::randn({rows, kOut}).to(at::kBFloat16);
    const RowGroups on_host(counts), on_device(on_gpu(on_host.counts()));
    for (const RowGroups& given : {on_host, on_device}) {
      const at::Tensor gx = on_gpu(x), gw = on_gpu(w), gdy = on_gpu(dy);
      const at::Tensor y = poisoned({rows, kOut}, at::kBFloat16), dx = poisoned({rows, kIn}, at::kBFloat16);
      grouped_linear(y, gx, gw, given);
      grouped_linear_backward_input(dx, gdy, gw, given);
      const at::Tensor expected = product_of_groups(x, w.transpose(1, 2), counts), dexpected = product_of_groups(dy, w, counts);
      EXPECT_LT(relative_error(y, expected), 4e-3);
      EXPECT_LT(relative_error(dx, dexpected), 4e-3);
    }
  }
}

TEST(GroupedGemmOnGpu, SumsTheWeightGradientOfEachGroup) {
  CAIRN_NEEDS_GPU();
  constexpr int64_t kIn = 72, kOut = 136;
  for (const std::vector<int64_t>& counts : kCountsOnGpu) {
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0}), groups = std::ssize(counts);
    const at::Tensor x = at::randn({rows, kIn}).to(at::kBFloat16), dy = at::randn({rows, kOut}).to(at::kBFloat16);
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      const at::Tensor first = poisoned({groups, kOut, kIn}, type), sum = on_gpu(at::ones({groups, kOut, kIn}, type));
      grouped_linear_backward_weight(first, on_gpu(dy), on_gpu(x), RowGroups(counts));
      grouped_linear_backward_weight(sum, on_gpu(dy), on_gpu(x), RowGroups(counts), /*accumulate=*/true);
      int64_t begin = 0;
      for (size_t g = 0; g < counts.size(); begin += counts[g++]) {
        const auto at = static_cast<int64_t>(g);
        const at::Tensor expected =
            at::mm(dy.narrow(0, begin, counts[g]).to(at::kDouble).t(), x.narrow(0, begin, counts[g]).to(at::kDouble));
        if (counts[g] == 0) {
          EXPECT_EQ(first[at].abs().max().item<double>(), 0) << "group " << g << " has no rows";
        }
        EXPECT_LT((first[at].cpu().to(at::kDouble) - expected).norm().item<double>(), 6e-3 * expected.norm().item<double>() + 1e-9);
        EXPECT_LT((sum[at].cpu().to(at::kDouble) - expected - 1).norm().item<double>(), 1e-2 * (expected + 1).norm().item<double>());
      }
    }
  }
}

TEST(GroupedGemmOnGpu, IsOneKernelOnHopper) {
  CAIRN_NEEDS_GPU();
  if (!is_hopper(at::Device(at::kCUDA, 0))) GTEST_SKIP() << "no Hopper GPU here";
  const std::vector<int64_t> counts{5, 0, 9};
  const at::Tensor x = on_gpu(at::randn({14, 32}).to(at::kBFloat16)), w = on_gpu(at::randn({3, 24, 32}).to(at::kBFloat16));
  const at::Tensor y = poisoned({14, 24}, at::kBFloat16);
  EXPECT_TRUE(grouped_linear_on_cuda(y, x, w, RowGroups(counts)));
  EXPECT_TRUE(grouped_linear_backward_input_on_cuda(poisoned({14, 32}, at::kBFloat16), y, w, RowGroups(counts)));
  EXPECT_TRUE(grouped_linear_backward_weight_on_cuda(poisoned({3, 24, 32}, at::kBFloat16), y, x, RowGroups(counts), false));
}

TEST(GroupedGemmOnGpu, LoopsOverGroupsThatLibtorchDoesNotTake) {
  CAIRN_NEEDS_GPU();
  const std::vector<int64_t> counts{5, 0, 9};
  for (const auto& [type, in] : {std::pair{at::kBFloat16, int64_t{31}}, std::pair{at::kFloat, int64_t{32}}}) {
    const at::Tensor x = at::randn({14, in}).to(type), w = at::randn({3, 24, in}).to(type), y = poisoned({14, 24}, type);
    EXPECT_FALSE(grouped_linear_on_cuda(y, on_gpu(x), on_gpu(w), RowGroups(counts)));
    grouped_linear(y, on_gpu(x), on_gpu(w), RowGroups(counts));
    EXPECT_LT(relative_error(y, product_of_groups(x, w.transpose(1, 2), counts)), 6e-3);
  }
}

}  // namespace
}  // namespace cairn::kernels
