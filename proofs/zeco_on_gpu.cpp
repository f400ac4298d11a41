// Chunks of gated linear attention on one GPU (batched operations of libtorch), against the recurrence token by token.
#include <algorithm>
#include <functional>

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/clock.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "model/context/linear_attention.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

constexpr int64_t kHeads = 16, kKeys = 128, kValues = 256, kTokens = 64 * 1024, kLooped = 1024;
constexpr size_t kAll = 0;  // both pools of the allocator

struct OnGpu {
  kernels::LinearAttention on;
  at::Tensor dout;

  OnGpu(int64_t tokens, at::ScalarType dtype) {
    const auto normal = [&](int64_t dim) { return at::randn({1, tokens, kHeads, dim}, at::TensorOptions().device(at::kCUDA)).to(dtype); };
    on.q = normal(kKeys), on.k = normal(kKeys), on.v = normal(kValues), dout = normal(kValues);
    on.log_decay = at::rand({1, tokens, kHeads, kKeys}, at::TensorOptions().device(at::kCUDA)) / -16;
  }
  // Results in fp32: out and the gradients of q, k, v and the decays.
  std::vector<at::Tensor> both_passes() const {
    const at::TensorOptions wide = at::TensorOptions().device(at::kCUDA).dtype(at::kFloat);
    const at::Tensor out = at::empty(on.v.sizes(), wide), dg = at::empty(on.q.sizes(), wide);
    const kernels::LinearGradients into{at::empty(on.q.sizes(), wide), at::empty(on.q.sizes(), wide), at::empty(on.v.sizes(), wide)};
    const model::LinearBorders borders = model::linear_attention(out, on, {});
    model::linear_attention_backward(into, dg, on, dout, borders.initial, {});
    return {out, into.q, into.k, into.v, dg};
  }
  std::vector<at::Tensor> token_by_token() const {
    kernels::LinearAttention plain = on;
    for (at::Tensor* x : {&plain.q, &plain.k, &plain.v, &plain.log_decay}) *x = x->to(at::kFloat).detach().clone().set_requires_grad(true);
    const at::Tensor out = kernels::reference::linear_attention(plain).out;
    std::vector<at::Tensor> found{out.detach()};
    for (const at::Tensor& d : torch::autograd::grad({out}, {plain.q, plain.k, plain.v, plain.log_decay}, {dout.to(at::kFloat)}))
      found.push_back(d);
    return found;
  }
};

// Best of three after one that is not counted; reading a number waits for the device.
double seconds_of(const std::function<std::vector<at::Tensor>()>& act) {
  const base::RealClock clock;
  double best = 1e30;
  for (int round = 0; round < 4; ++round) {
    const auto begun = clock.now();
    (void)act().back().view({-1})[0].item<float>();
    if (round > 0) best = std::min(best, base::seconds(clock.now() - begun));
  }
  return best;
}

int64_t peak_bytes(const std::function<void()>& act) {
  c10::getDeviceAllocator(at::kCUDA)->resetPeakStats(0);
  act();
  return c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(0).allocated_bytes[kAll].peak;
}

}  // namespace

void prove_zeco_on_gpu(const ProofOptions&, Findings& findings, base::Log& log) {
  double worst = 0;
  {
    const OnGpu half(kLooped, at::kBFloat16);
    const std::vector<at::Tensor> found = half.both_passes(), expected = half.token_by_token();
    for (size_t i = 0; i < found.size(); ++i)
      worst = std::max(worst, ((found[i] - expected[i]).abs().max() / expected[i].abs().max()).item<double>());
  }
  findings.at_most("H200. bf16 inputs, 1,024 tokens: error of outputs and gradients, relative", 0, worst, 1e-2);
  const auto peak = [](int64_t tokens) {
    const OnGpu problem(tokens, at::kFloat);
    return static_cast<double>(peak_bytes([&] { (void)problem.both_passes(); }));
  };
  const double half_peak = peak(kTokens / 2), whole_peak = peak(kTokens);
  findings.at_most("H200. memory at 65,536 tokens to that at 32,768", half_peak, whole_peak / half_peak, 2.1);
  const OnGpu whole(kTokens, at::kFloat), part(kLooped, at::kFloat);
  const double chunked = seconds_of([&] { return whole.both_passes(); });
  const double looped = seconds_of([&] { return part.token_by_token(); }) * (kTokens / kLooped);
  log.info("65,536 tokens: {:.1f} ms in chunks, {:.0f} ms token by token (64 times what 1,024 take)", chunked * 1e3, looped * 1e3);
  findings.at_least("H200. 65,536 tokens, 16 heads of 128 x 256: time token by token to that in chunks, both passes", looped,
                    looped / chunked, 5);
}

}  // namespace cairn::study
