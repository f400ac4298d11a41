// S2-Attention's kernels on one GPU at 65,536 positions, against libtorch's FlashAttention and against our dense path (cuDNN where it is).
#include <algorithm>

#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include "base/log.h"
#include "kernels/aten.h"
#include "kernels/attention.h"
#include "kernels/block_pattern.h"
#include "proofs/gpu_runs.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

constexpr int64_t kPositions = 65536, kHeads = 32, kHeadDim = 128, kShort = 4096;
constexpr size_t kAll = 0;  // both pools of the allocator
constexpr int kTimes = 5;

struct Problem {
  at::Tensor q, k, v, dout, dq, dk, dv;
  explicit Problem(int64_t positions) {
    for (at::Tensor* x : {&q, &k, &v, &dout, &dq, &dk, &dv})
      *x = at::randn({1, positions, kHeads, kHeadDim}, at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16));
  }
  kernels::AttentionOutput forward(const kernels::AttentionOptions& options) const { return kernels::attend(q, k, v, options); }
  kernels::AttentionGradients backward(const kernels::AttentionOutput& output, const kernels::AttentionOptions& options) const {
    return kernels::attention_gradients({dq, dk, dv}, dout, q, k, v, output.out, output.lse, options);
  }
};

int64_t peak_bytes(const std::function<void()>& act) {
  c10::getDeviceAllocator(at::kCUDA)->resetPeakStats(0);
  act();
  return c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(0).allocated_bytes[kAll].peak;
}

// The kernels against scores that are masked one by one, in fp32.
double error_of(const kernels::BlockPattern& pattern) {
  const Problem problem(kShort);
  const kernels::AttentionOptions options{.pattern = &pattern};
  const kernels::AttentionOutput found = problem.forward(options);
  const kernels::AttentionGradients gradients = problem.backward(found, options);
  double worst = 0;
  for (const int64_t head : {int64_t{0}, int64_t{5}, kHeads - 1}) {
    const auto one = [&](const at::Tensor& x) { return x.narrow(2, head, 1).to(at::kFloat).cpu(); };
    const at::Tensor q = one(problem.q), k = one(problem.k), v = one(problem.v), dout = one(problem.dout);
    const at::Tensor out = at::empty_like(q), dq = at::empty_like(q), dk = at::empty_like(q), dv = at::empty_like(q);
    const at::Tensor lse = at::empty({1, 1, kShort});
    const kernels::AttentionOptions part{.pattern = &pattern, .first_kv_head = head};
    kernels::reference::attention(out, lse, q, k, v, part);
    kernels::reference::attention_backward(dq, dk, dv, dout, q, k, v, out, lse, part);
    const auto apart = [](const at::Tensor& a, const at::Tensor& b) { return ((a - b).abs().max() / b.abs().max()).item<double>(); };
    for (const double error :
         {apart(one(found.out), out), apart(one(gradients.q), dq), apart(one(gradients.k), dk), apart(one(gradients.v), dv)})
      worst = std::max(worst, error);
  }
  return worst;
}

}  // namespace

void prove_s2_attention_on_gpu(const ProofOptions&, Findings& findings, base::Log& log) {
  const kernels::BlockPattern pattern{
      .block = 64, .local_blocks = 16, .stride = 16, .kv_heads = kHeads, .lists = kernels::make_block_list_cache()};
  findings.at_most(fmt::format("H200. bf16, {} positions: error of outputs and gradients against masked scores, relative", kShort), 0,
                   error_of(pattern), 2e-2);

  const Problem problem(kPositions);
  const kernels::AttentionOptions sparse{.pattern = &pattern}, dense;
  const auto transposed = [](const at::Tensor& x) { return x.transpose(1, 2); };
  const at::Tensor q = transposed(problem.q), k = transposed(problem.k), v = transposed(problem.v);
  const auto flash = [&] { (void)at::_scaled_dot_product_flash_attention(q, k, v, 0, /*is_causal=*/true); };
  const double flash_s = gpu_seconds(flash, kTimes), dense_s = gpu_seconds([&] { (void)problem.forward(dense); }, kTimes),
               sparse_s = gpu_seconds([&] { (void)problem.forward(sparse); }, kTimes);
  log.info("forward: FlashAttention of libtorch {:.2f} ms, our dense path {:.2f} ms, S2 {:.2f} ms", flash_s * 1e3, dense_s * 1e3,
           sparse_s * 1e3);
  const int64_t blocks = kPositions / pattern.block;
  log.info("the pattern sees one of {:.1f} pairs of blocks",
           static_cast<double>(kHeads * blocks * (blocks + 1) / 2) / static_cast<double>(kernels::seen_pairs(pattern, blocks)));
  const std::string shape = fmt::format("H200. {} positions, {} heads of {}, window 16, stride 16", kPositions, kHeads, kHeadDim);
  findings.at_least(shape + ": time of libtorch's FlashAttention to S2's, forward", flash_s, flash_s / sparse_s, 3);
  const kernels::AttentionOutput of_dense = problem.forward(dense), of_sparse = problem.forward(sparse);
  const double dense_back_s = gpu_seconds([&] { (void)problem.backward(of_dense, dense); }, kTimes),
               sparse_back_s = gpu_seconds([&] { (void)problem.backward(of_sparse, sparse); }, kTimes);
  log.info("backward: our dense path {:.2f} ms, S2 {:.2f} ms", dense_back_s * 1e3, sparse_back_s * 1e3);
  findings.at_least(shape + ": time of our dense path to S2's, forward and backward", dense_s + dense_back_s,
                    (dense_s + dense_back_s) / (sparse_s + sparse_back_s), 2.5);
  const auto both = [&](const kernels::AttentionOptions& options) {
    return peak_bytes([&] { (void)problem.backward(problem.forward(options), options); });
  };
  const auto dense_bytes = static_cast<double>(both(dense)), sparse_bytes = static_cast<double>(both(sparse));
  findings.at_most(shape + ": peak memory of both passes to that of the dense path", dense_bytes, sparse_bytes / dense_bytes, 1);
}

}  // namespace cairn::study
