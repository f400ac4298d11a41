#include "train/state/tensor_checksum.h"

#include <span>

#include "base/checksum.h"
#include "kernels/aten.h"

namespace cairn::train {

uint64_t checksum_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu().contiguous();
  return base::checksum(std::span(static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()));
}

}  // namespace cairn::train
