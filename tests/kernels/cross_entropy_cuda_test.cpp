// Cross entropy on a GPU is as exact as its plain form there, for vocabularies of any size.
#include "kernels/cross_entropy.h"
#include "kernels/on_gpu.h"

namespace cairn::kernels {
namespace {

// Rows that fit into shared memory and rows that do not, packs that rows begin in the midst of, rows shorter than a pack.
struct GpuLossCase {
  int64_t rows, vocab, askew;
};
constexpr GpuLossCase kGpuLossCases[] = {{1, 2, 0},     {9, 5, 0},     {127, 127, 0},  {40, 256, 1},   {5, 4096, 0}, {3, 50257, 0},
                                         {3, 50304, 0}, {2, 50304, 3}, {2, 128256, 0}, {2, 151936, 0}, {0, 64, 0}};

struct GpuLossInputs {
  at::Tensor logits, targets, scales, one_scale;
  std::string what;
  GpuLossInputs(const GpuLossCase& c, at::ScalarType type) {
    logits = askew(on_gpu((4 * normal({c.rows, c.vocab}, 1) + 3).to(type)), c.askew);
    at::Tensor places = integers(0, c.vocab, {c.rows}, 2);
    if (c.rows > 4) places[1] = kIgnoreTarget, places[2] = kElsewhereTarget, places[3] = 0, places[4] = c.vocab - 1;
    targets = on_gpu(places);
    scales = on_gpu(normal({c.rows}, 3).abs() + 0.1);
    one_scale = on_gpu(at::full({1}, 0.25));
    what = fmt::format("{} x {} + {}, {}", c.rows, c.vocab, c.askew, c10::toString(type));
  }
};

TEST(CrossEntropyOnCuda, LossIsAsExactAsThatOfPlainOperations) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : kKernelTypes)
    for (const GpuLossCase& c : kGpuLossCases) {
      const GpuLossInputs in(c, type);
      const at::Tensor loss = poisoned({c.rows}), lse = poisoned({c.rows}), before = in.logits.clone();
      const at::Tensor plain_loss = poisoned({c.rows}), plain_lse = poisoned({c.rows}), exact_loss = wide(loss),
                       exact_lse = wide(lse).clone();
      cross_entropy(loss, lse, in.logits, in.targets);
      EXPECT_TRUE(bitwise_equal(in.logits, before)) << in.what;
      reference::cross_entropy(plain_loss, plain_lse, in.logits, in.targets);
      reference::cross_entropy(exact_loss, exact_lse, wide(in.logits), in.targets);
      expect_as_exact(loss, plain_loss, exact_loss, "loss of " + in.what);
      expect_as_exact(lse, plain_lse, exact_lse, "lse of " + in.what);
    }
}

TEST(CrossEntropyOnCuda, GradientTakesThePlaceOfTheLogits) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : kKernelTypes)
    for (const GpuLossCase& c : kGpuLossCases) {
      const GpuLossInputs in(c, type);
      for (const at::Tensor& scale : {in.scales, in.one_scale}) {
        const at::Tensor exact_loss = at::empty({c.rows}, wide(in.scales).options()), exact_lse = at::empty_like(exact_loss);
        const at::Tensor exact = wide(in.logits).clone(), plain = in.logits.clone();
        reference::cross_entropy(exact_loss, exact_lse, exact, in.targets);
        reference::cross_entropy_backward(exact, exact_lse, in.targets, wide(scale));
        reference::cross_entropy_backward(plain, exact_lse.to(at::kFloat), in.targets, scale);

        const at::Tensor loss = poisoned({c.rows}), lse = poisoned({c.rows}), both = askew(in.logits, c.askew);
        cross_entropy_and_gradient(loss, lse, both, in.targets, scale);
        expect_as_exact(both, plain, exact, "gradient of " + in.what);
        expect_as_exact(loss, exact_loss, exact_loss, "loss of " + in.what);
        expect_as_exact(lse, exact_lse, exact_lse, "lse of " + in.what);

        const at::Tensor alone = askew(in.logits, c.askew), again = askew(in.logits, c.askew);
        cross_entropy_backward(alone, lse, in.targets, scale);
        expect_as_exact(alone, plain, exact, "gradient alone of " + in.what);
        const at::Tensor second_loss = poisoned({c.rows}), second_lse = poisoned({c.rows});
        cross_entropy_and_gradient(second_loss, second_lse, again, in.targets, scale);
        EXPECT_TRUE(bitwise_equal(again, both) && bitwise_equal(second_loss, loss) && bitwise_equal(second_lse, lse))
            << in.what << " a second time";
      }
    }
}

TEST(CrossEntropyOnCuda, HiddenLogitsCountNothingAndBrokenOnesShow) {
  CAIRN_NEEDS_GPU();
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const at::ScalarType type : kKernelTypes) {
    at::Tensor rows = normal({6, 1000}, 1);
    rows[0].slice(0, 3, 1000).fill_(-inf);  // three logits are left
    rows[1].fill_(-inf)[999] = -300;        // one, far down, in the last place
    rows[2][500] = nan;
    rows[3].fill_(nan);
    const at::Tensor logits = on_gpu(rows.to(type)),
                     targets = on_gpu(at::tensor({int64_t{2}, int64_t{999}, int64_t{5}, int64_t{6}, int64_t{1000}, int64_t{-7}}));
    const at::Tensor loss = poisoned({6}), lse = poisoned({6}), scale = on_gpu(at::ones({1}));
    const at::Tensor exact_lse = at::logsumexp(wide(logits), {1});
    cross_entropy_and_gradient(loss, lse, logits, targets, scale);
    expect_close(lse.cpu().narrow(0, 0, 2), exact_lse.cpu().narrow(0, 0, 2), 16, "lse");
    EXPECT_NEAR(loss[1].item<double>(), 0, 1e-4);
    EXPECT_LT(logits[0].to(at::kFloat).sum().abs().item<double>(), 0.02);
    EXPECT_EQ(logits[0].slice(0, 3, 1000).abs().max().item<double>(), 0);
    for (const int64_t row : {2, 3, 4, 5}) EXPECT_TRUE(std::isnan(loss[row].item<double>())) << row;  // the last two: targets outside
  }
}

}  // namespace
}  // namespace cairn::kernels
