// This file is compiled without fused multiply-add: replicas on different machines must get bitwise identical results.
#include "kernels/perturb.h"

#include <array>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"
#include "kernels/optimizer/perturb_cuda.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kTask = 4096;  // elements of a thread's turn
constexpr int64_t kRun = 256;    // elements at a time: directions stay in the first cache

template <typename Body>
void over_weights(const at::Tensor& weights, const char* what, const Body& body) {
  CAIRN_CHECK(weights.is_contiguous() && weights.is_cpu(),
              "{}: weights must be contiguous, on the CPU or on a GPU that this build has kernels for", what);
  parallel_rows(weights.numel(), kTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kRun) body(i, std::min(kRun, end - i));
  });
}

template <typename Call>
void of_type(const at::Tensor& weights, const Call& call) {
  if (weights.scalar_type() == at::kFloat) return call(float{});
  CAIRN_CHECK(weights.scalar_type() == at::kBFloat16, "weights are {}: directions are added to fp32 and bf16",
              c10::toString(weights.scalar_type()));
  call(c10::BFloat16{});
}

}  // namespace

void fill_direction(std::span<float> values, const base::Random& random, int64_t first, Noise noise) {
  if (noise == Noise::normal) return random.fill_normal(values, static_cast<uint64_t>(first));
  for (size_t i = 0; i < values.size();) {
    const uint64_t index = static_cast<uint64_t>(first) + i;
    const uint32_t word = random.bits32(index / 32);
    for (uint64_t bit = index % 32; bit < 32 && i < values.size(); ++bit, ++i) values[i] = (word >> bit & 1) != 0 ? 1.0f : -1.0f;
  }
}

void perturb(const at::Tensor& out, const at::Tensor& weights, const Direction& direction, int64_t first, Noise noise) {
  CAIRN_CHECK(out.is_contiguous() && out.numel() == weights.numel() && out.scalar_type() == weights.scalar_type() &&
                  out.device() == weights.device(),
              "{} perturbed weights for {}", out.numel(), weights.numel());
  if (perturb_on_cuda(out, weights, direction, first, noise)) return;
  of_type(weights, [&](auto type) {
    using T = decltype(type);
    const T* from = weights.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    over_weights(weights, "perturb", [&](int64_t begin, int64_t count) {
      std::array<float, kRun> z;
      fill_direction({z.data(), static_cast<size_t>(count)}, direction.random, first + begin, noise);
      for (int64_t i = 0; i < count; ++i)
        to[begin + i] = static_cast<T>(static_cast<float>(from[begin + i]) + direction.coefficient * z[static_cast<size_t>(i)]);
    });
  });
}

void replay(const at::Tensor& weights, std::span<const Direction> directions, int64_t first, float rate, float keep, Noise noise) {
  if (replay_on_cuda(weights, directions, first, rate, keep, noise)) return;
  of_type(weights, [&](auto type) {
    using T = decltype(type);
    T* w = weights.mutable_data_ptr<T>();
    over_weights(weights, "replay", [&](int64_t begin, int64_t count) {
      std::array<float, kRun> z, sum{};
      for (const Direction& direction : directions) {
        fill_direction({z.data(), static_cast<size_t>(count)}, direction.random, first + begin, noise);
        for (size_t i = 0; i < static_cast<size_t>(count); ++i) sum[i] += direction.coefficient * z[i];
      }
      for (int64_t i = 0; i < count; ++i)
        w[begin + i] = static_cast<T>(static_cast<float>(w[begin + i]) * keep - rate * sum[static_cast<size_t>(i)]);
    });
  });
}

}  // namespace cairn::kernels
