#pragma once
#include <optional>
#include <string>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace cairn::base {
class Clock;
}

namespace cairn::kernels {

// The name of a GPU as its driver gives it, "NVIDIA H200"; empty for the CPU.
std::string gpu_name(const at::Device& device);

// Dense bf16 FLOP/s by the data sheet of a GPU; empty for one that the list does not have.
std::optional<double> datasheet_bf16_flops(const std::string& gpu);

// The FLOP/s that count as 100 % of a device in products of this type: those of the data sheet where there is one (bf16 on known GPUs),
// else those of the fastest of a few large products, timed here with this process's threads.
double peak_flops(const at::Device& device, c10::ScalarType type, const base::Clock& clock);

}  // namespace cairn::kernels
