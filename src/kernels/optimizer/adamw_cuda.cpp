// AdamW on a GPU: from tensors to pointers.
#include "kernels/optimizer/adamw_cuda.h"

#include <algorithm>

#include "kernels/adamw.h"
#include "kernels/aten.h"
#include "kernels/cuda/tensor.h"
#include "kernels/optimizer/adamw_kernel.h"

namespace cairn::kernels {

bool has_cuda_kernels() { return true; }

namespace {

bool has_kernel(const AdamwPiece& one, const at::Device& device) {
  return one.p.device() == device && one.m.device() == device && one.g.device() == device && all_kernel_inputs(one.p) &&
         all_kernel_inputs(one.m, one.v) && all_kernel_inputs(one.g);
}

bool have_same_dtypes(const AdamwPiece& a, const AdamwPiece& b) {
  return a.p.scalar_type() == b.p.scalar_type() && a.g.scalar_type() == b.g.scalar_type() && a.m.scalar_type() == b.m.scalar_type();
}

}  // namespace

bool adamw_on_cuda(std::span<const AdamwPiece> pieces, const AdamwStep& step) {
  if (pieces.empty()) return true;
  const at::Device where = pieces[0].p.device();
  if (!std::ranges::all_of(pieces, [&](const AdamwPiece& one) { return has_kernel(one, where); })) return false;
  const CudaDeviceGuard device(where);
  at::Tensor factor;
  if (step.gradient_factor != nullptr) factor = step.gradient_factor->to(at::kFloat);
  AdamwLaunch launch{.gradient_factor = factor.defined() ? factor.const_data_ptr<float>() : nullptr,
                     .gradient_scale = static_cast<float>(step.gradient_scale),
                     .beta1 = static_cast<float>(step.beta1),
                     .beta2 = static_cast<float>(step.beta2),
                     .eps = static_cast<float>(step.eps)};
  const AdamwScalars common = adamw_scalars(step);
  const auto* given = step.scalars != nullptr ? static_cast<const AdamwScalars*>(step.scalars->const_data_ptr()) : nullptr;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const AdamwPiece& one = pieces[i];
    if (given != nullptr && launch.pieces == 0) launch.scalars = given + i;
    launch.piece[launch.pieces++] = {.p = one.p.mutable_data_ptr(),
                                     .m = one.m.mutable_data_ptr(),
                                     .v = one.v.mutable_data_ptr(),
                                     .g = one.g.const_data_ptr(),
                                     .count = one.p.numel(),
                                     .first_index = one.first_index,
                                     .scalars = adamw_scalars_of(one, step, common),
                                     .stochastic_rounding = one.rounding != nullptr};
    if (i + 1 < pieces.size() && launch.pieces < kAdamwPieces && have_same_dtypes(one, pieces[i + 1])) continue;
    launch.parameters = elements_of(one.p), launch.gradients = elements_of(one.g), launch.moments = elements_of(one.m);
    check_launch(launch_adamw(launch, stream_of(one.p)), "AdamW");
    launch.pieces = 0;
  }
  return true;
}

}  // namespace cairn::kernels
