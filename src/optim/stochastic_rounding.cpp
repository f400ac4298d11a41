#include "optim/stochastic_rounding.h"

#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/parallel.h"

namespace cairn::optim {
namespace {

constexpr int64_t kChunk = 16384;
constexpr uint32_t kLowBits = 0xffff;  // of fp32, that bf16 lacks

// Adding a random number below 2^16 carries into the upper half with the odds of the lower half's share.
uint16_t rounded(float value, uint32_t random) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isfinite(value)) return static_cast<uint16_t>((bits + (random & kLowBits)) >> 16);
  return static_cast<uint16_t>((bits >> 16) | (std::isnan(value) ? 0x40u : 0u));  // a NaN whose upper half says so
}

}  // namespace

void round_stochastically(const at::Tensor& to, const at::Tensor& from, const base::Random& random, int64_t first_index) {
  CAIRN_CHECK(to.scalar_type() == at::kBFloat16 && from.scalar_type() == at::kFloat && to.numel() == from.numel() && to.is_contiguous() &&
                  from.is_contiguous() && to.is_cpu() && from.is_cpu(),
              "rounding {} of {} into {} of {}", c10::str(from.sizes()), c10::toString(from.scalar_type()), c10::str(to.sizes()),
              c10::toString(to.scalar_type()));
  const float* source = from.const_data_ptr<float>();
  c10::BFloat16* target = to.mutable_data_ptr<c10::BFloat16>();
  kernels::parallel_rows(from.numel(), kChunk, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      target[i] = c10::BFloat16(rounded(source[i], random.bits32(static_cast<uint64_t>(first_index + i))), c10::BFloat16::from_bits());
  });
}

}  // namespace cairn::optim
