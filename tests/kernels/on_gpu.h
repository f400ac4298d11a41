// Comparing kernels on a GPU with double, and with what plain operations make of the same values in the same type.
#pragma once
#include <cstring>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "kernels/adamw.h"
#include "kernels/closeness.h"
#include "kernels/device.h"

namespace cairn::kernels {

inline at::Tensor on_gpu(const at::Tensor& x) { return x.cuda(); }

#define CAIRN_NEEDS_GPU() \
  if (!can_use_cuda()) GTEST_SKIP() << "no GPU here"

// Room for a result, full of NaN: what a kernel forgets to write shows.
inline at::Tensor poisoned(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return on_gpu(at::full(sizes, std::numeric_limits<double>::quiet_NaN(), type));
}

// A copy whose first element lies `elements` beyond an aligned address.
inline at::Tensor askew(const at::Tensor& x, int64_t elements) {
  const at::Tensor room = at::empty({x.numel() + elements}, x.options()), part = room.narrow(0, elements, x.numel()).view(x.sizes());
  part.copy_(x);
  return part;
}

// |actual - expected| / |expected| in the Frobenius norm.
inline double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor a = wide(actual.cpu()), e = wide(expected.cpu());
  return ((a - e).norm() / e.norm().clamp_min(1e-30)).item<double>();
}

// At most a tenth less exact than the plain operations; a few roundings of fp32 are free.
inline void expect_as_exact(const at::Tensor& actual, const at::Tensor& plain, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  constexpr double kFree = 16 * std::numeric_limits<float>::epsilon();
  EXPECT_LE(relative_error(actual, expected), 1.1 * relative_error(plain, expected) + kFree) << what;
}

// The bits, NaN included.
inline bool bitwise_equal(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor one = a.cpu().contiguous(), other = b.cpu().contiguous();
  return one.nbytes() == other.nbytes() && std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
}

constexpr at::ScalarType kKernelTypes[] = {at::kBFloat16, at::kFloat};

}  // namespace cairn::kernels
