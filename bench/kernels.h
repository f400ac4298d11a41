// What the measurements of kernels on a GPU have in common.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/aten.h"

namespace cairn::study {

struct KernelCase {
  std::string name;
  double work;                     // bytes, or floating-point operations
  std::function<void(int)> fast;   // on the tensors of one set
  std::function<void(int)> plain;  // the same by plain operations
};
using Measure = std::function<void(const KernelCase&)>;

inline at::TensorOptions on_gpu(at::ScalarType type) { return at::TensorOptions().device(at::kCUDA).dtype(type); }

// One tensor for each of a few sets.
struct Sets {
  static constexpr int kSets = 3;

  explicit Sets(const std::vector<int64_t>& sizes, at::ScalarType type = at::kBFloat16, double size = 1) {
    for (int i = 0; i < kSets; ++i) all.push_back(at::randn(sizes, on_gpu(type)) * size);
  }
  const at::Tensor& operator[](int set) const { return all[static_cast<size_t>(set)]; }

  std::vector<at::Tensor> all;
};

// Of an optimizer, of fp8 codes, and of what is drawn at random (kernels_beside.cpp).
void measure_updates(const Measure& bytes, const Measure& products);
void measure_codes(const Measure& bytes, const Measure& products);
void measure_noise(const Measure& bytes);

}  // namespace cairn::study
