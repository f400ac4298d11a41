#include "kernels/stochastic_rounding.h"

#include "base/check.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"
#include "kernels/optimizer/stochastic_rounding_bits.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kChunk = 16384;

}  // namespace

void round_stochastically(const at::Tensor& to, const at::Tensor& from, const base::Random& random, int64_t first_index) {
  CAIRN_CHECK(to.scalar_type() == at::kBFloat16 && from.scalar_type() == at::kFloat && to.numel() == from.numel() && to.is_contiguous() &&
                  from.is_contiguous() && to.device() == from.device(),
              "rounding {} of {} into {} of {}", c10::str(from.sizes()), c10::toString(from.scalar_type()), c10::str(to.sizes()),
              c10::toString(to.scalar_type()));
  if (to.is_cuda()) return round_stochastically_on_cuda(to, from, random, first_index);
  const auto* source = static_cast<const uint32_t*>(from.const_data_ptr());
  auto* target = static_cast<uint16_t*>(to.mutable_data_ptr());
  kernels::parallel_rows(from.numel(), kChunk, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) target[i] = round_bits(source[i], random.bits32(static_cast<uint64_t>(first_index + i)));
  });
}

}  // namespace cairn::kernels
