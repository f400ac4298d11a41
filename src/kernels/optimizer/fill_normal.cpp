// Normal values keyed by element: the numbers of base::Random, in parallel.
#include "kernels/fill_normal.h"

#include "base/check.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"
#include "kernels/optimizer/fill_normal_cuda.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kChunk = 16384;

}  // namespace

void fill_normal(const at::Tensor& flat, const base::Random& random, int64_t first_index, double deviation) {
  CAIRN_CHECK(flat.is_contiguous(), "fill_normal of a tensor of shape {} that is not contiguous", c10::str(flat.sizes()));
  if (fill_normal_on_cuda(flat, random, first_index, deviation)) return;
  if (flat.scalar_type() == at::kBFloat16) {
    const at::Tensor exact = at::empty(flat.sizes(), at::kFloat);
    fill_normal(exact, random, first_index, deviation);
    flat.copy_(exact);
    return;
  }
  const bool direct = flat.device().is_cpu() && flat.scalar_type() == at::kFloat;
  const at::Tensor values = direct ? flat : at::empty(flat.sizes(), at::TensorOptions().dtype(at::kFloat).device(at::kCPU));
  float* to = values.mutable_data_ptr<float>();
  const float factor = direct ? static_cast<float>(deviation) : 1.0f;
  parallel_rows(flat.numel(), kChunk, [&](int64_t begin, int64_t end) {
    random.fill_normal({to + begin, static_cast<size_t>(end - begin)}, static_cast<uint64_t>(first_index + begin));
    for (int64_t i = begin; i < end; ++i) to[i] *= factor;
  });
  if (!direct) flat.copy_(values.to(at::kDouble) * deviation);  // scaled in double, rounded once to the wanted type
}

}  // namespace cairn::kernels
