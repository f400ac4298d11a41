#pragma once
#include <string>

#include <c10/core/Device.h>

namespace cairn::kernels {

// What --device names: "cpu", or "cuda", which is refused where this build or this machine cannot compute on a GPU.
at::Device device_called(const std::string& name);

}  // namespace cairn::kernels
