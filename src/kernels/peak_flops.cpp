#include "kernels/peak_flops.h"

#include <algorithm>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/clock.h"
#include "kernels/aten.h"

namespace cairn::kernels {
namespace {

struct Datasheet {
  const char* in_name;
  double bf16_tflops;  // dense, without sparsity
};

// The first entry that is part of the name holds, so that longer names come first.
constexpr Datasheet kDatasheets[] = {{"H100 PCIe", 756}, {"H100 NVL", 835}, {"H100", 989},      {"H200", 989}, {"H800", 989},
                                     {"B200", 2250},     {"A100", 312},     {"A800", 312},      {"L40S", 362}, {"L40", 181},
                                     {"L4", 121},        {"A10G", 70},      {"RTX A6000", 155}, {"A10", 125},  {"RTX 4090", 165},
                                     {"RTX 3090", 71},   {"V100", 125},     {"T4", 65}};

void wait_for(const at::Device& device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

}  // namespace

std::optional<double> datasheet_bf16_flops(const std::string& gpu) {
  for (const Datasheet& one : kDatasheets)
    if (gpu.find(one.in_name) != std::string::npos) return one.bf16_tflops * 1e12;
  return std::nullopt;
}

double peak_flops(const at::Device& device, c10::ScalarType type, const base::Clock& clock) {
  if (device.is_cuda() && type == at::kBFloat16)
    if (const std::optional<double> known = datasheet_bf16_flops(gpu_name(device))) return *known;
  const int64_t n = device.is_cpu() ? 384 : 2048;  // a few milliseconds
  const at::Tensor a = at::ones({n, n}, at::TensorOptions().dtype(type).device(device));
  at::Tensor product = at::empty_like(a);
  double shortest_s = 1e9;
  for (int i = 0; i < 4; ++i) {  // the first one warms up
    wait_for(device);
    const auto begun = clock.now();
    at::mm_out(product, a, a);
    wait_for(device);
    if (i > 0) shortest_s = std::min(shortest_s, base::seconds(clock.now() - begun));
  }
  return 2.0 * static_cast<double>(n * n * n) / std::max(shortest_s, 1e-9);
}

}  // namespace cairn::kernels
