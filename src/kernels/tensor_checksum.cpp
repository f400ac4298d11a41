#include "kernels/tensor_checksum.h"

#include <algorithm>

#include "kernels/aten.h"

namespace cairn::kernels {

at::Tensor tensor_checksum(const at::Tensor& x) {
  constexpr int64_t kSlice = 1 << 22;              // elements that are widened at a time
  constexpr int64_t kFactor = 0x5851f42d4c957f2d;  // odd, so that no bit is lost
  const auto bytes = x.element_size();
  const at::Tensor words = x.reshape({-1}).view(bytes == 1 ? at::kByte : bytes == 2 ? at::kShort : bytes == 4 ? at::kInt : at::kLong);
  const auto options = x.options().dtype(at::kLong);
  // Odd pseudo-random weights for the elements. With a regular pattern, changes of the same pattern could cancel.
  at::Tensor places = at::arange(1, std::min(kSlice, words.numel()) + 1, options).mul_(kFactor);
  places = places.bitwise_xor(places.bitwise_right_shift(32)).bitwise_or_(1);
  const at::Tensor sum = at::zeros({}, options);
  for (int64_t first = 0; first < words.numel(); first += kSlice) {
    const int64_t count = std::min(kSlice, words.numel() - first);
    const at::Tensor wide = words.narrow(0, first, count).to(at::kLong, /*non_blocking=*/false, /*copy=*/true);
    sum.mul_(kFactor).add_(wide.mul_(places.narrow(0, 0, count)).sum());
  }
  return sum;
}

}  // namespace cairn::kernels
