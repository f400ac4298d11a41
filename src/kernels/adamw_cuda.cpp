// AdamW on a GPU: from tensors to pointers.
#include "kernels/adamw_cuda.h"

#include <algorithm>

#include "kernels/adamw.h"
#include "kernels/adamw_kernel.h"
#include "kernels/aten.h"
#include "kernels/cuda_tensor.h"

namespace cairn::kernels {

bool has_cuda_kernels() { return true; }

namespace {

bool has_kernel(const AdamwPiece& one, const at::Device& device) {
  return one.p.device() == device && one.m.device() == device && one.g.device() == device && all_of_kernels(one.p) &&
         all_of_kernels(one.m, one.v) && all_of_kernels(one.g);
}

bool are_kept_alike(const AdamwPiece& a, const AdamwPiece& b) {
  return a.p.scalar_type() == b.p.scalar_type() && a.g.scalar_type() == b.g.scalar_type() && a.m.scalar_type() == b.m.scalar_type();
}

}  // namespace

bool adamw_on_cuda(std::span<const AdamwPiece> pieces, const AdamwStep& step) {
  if (pieces.empty()) return true;
  const at::Device where = pieces[0].p.device();
  if (!std::ranges::all_of(pieces, [&](const AdamwPiece& one) { return has_kernel(one, where); })) return false;
  const OnDeviceOf device(where);
  at::Tensor factor;
  if (step.gradient_factor != nullptr) factor = step.gradient_factor->to(at::kFloat);
  AdamwLaunch launch{.gradient_factor = factor.defined() ? factor.const_data_ptr<float>() : nullptr,
                     .gradient_scale = static_cast<float>(step.gradient_scale),
                     .beta1 = static_cast<float>(step.beta1),
                     .beta2 = static_cast<float>(step.beta2),
                     .eps = static_cast<float>(step.eps)};
  const AdamwNumbers common = adamw_numbers(step);
  const auto* told = step.numbers != nullptr ? static_cast<const AdamwNumbers*>(step.numbers->const_data_ptr()) : nullptr;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const AdamwPiece& one = pieces[i];
    if (told != nullptr && launch.pieces == 0) launch.numbers = told + i;
    launch.piece[launch.pieces++] = {.p = one.p.mutable_data_ptr(),
                                     .m = one.m.mutable_data_ptr(),
                                     .v = one.v.mutable_data_ptr(),
                                     .g = one.g.const_data_ptr(),
                                     .count = one.p.numel(),
                                     .numbers = adamw_numbers_of(one, step, common),
                                     .rounds_randomly = one.rounding != nullptr};
    if (i + 1 < pieces.size() && launch.pieces < kAdamwPieces && are_kept_alike(one, pieces[i + 1])) continue;
    launch.parameters = elements_of(one.p), launch.gradients = elements_of(one.g), launch.moments = elements_of(one.m);
    check_started(launch_adamw(launch, stream_of(one.p)), "AdamW");
    launch.pieces = 0;
  }
  return true;
}

}  // namespace cairn::kernels
