#include "comm/device_stream.h"

#include <c10/cuda/CUDAStream.h>

namespace cairn::comm {

void* current_device_stream(int device) { return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream(); }

}  // namespace cairn::comm
