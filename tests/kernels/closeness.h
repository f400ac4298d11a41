// Comparing a kernel's fp32 result with the same formula in double.
#pragma once
#include <initializer_list>
#include <limits>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/aten.h"

namespace cairn::kernels {

// Expects |actual - expected| <= roundings * epsilon(actual) * max(1, max |expected|), everywhere; nan and inf must be in the same places.
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, double roundings, const char* what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  const at::Tensor a = actual.to(at::kDouble), e = expected.to(at::kDouble);
  const at::Tensor finite = at::isfinite(e);
  ASSERT_TRUE(at::equal(at::isfinite(a), finite)) << what << ": not finite in other places than expected";
  const double epsilon =
      actual.scalar_type() == at::kFloat ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
  const double size = std::max(1.0, e.masked_fill(~finite, 0).abs().max().item<double>());
  const double error = (a - e).masked_fill(~finite, 0).abs().max().item<double>();
  EXPECT_LE(error, roundings * epsilon * size) << what;
}

inline at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble); }

// Seeded normal values, the same in every run.
inline at::Tensor normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType type = at::kFloat) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)).to(type);
}

inline at::Tensor integers(int64_t low, int64_t high, at::IntArrayRef sizes, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randint(low, high, sizes, generator, at::TensorOptions().dtype(at::kLong));
}

// A leaf of a graph, in double.
inline at::Tensor leaf(const at::Tensor& x) { return x.to(at::kDouble).clone().set_requires_grad(true); }

// The gradients of sum(y * dy) that autograd finds.
inline std::vector<at::Tensor> gradients(const at::Tensor& y, const at::Tensor& dy, const std::vector<at::Tensor>& inputs) {
  return torch::autograd::grad({y}, inputs, {dy.to(at::kDouble)});
}

// Calls body() with 1, then 2 threads of libtorch, and puts the number back.
template <class Body>
void with_threads(const Body& body) {
  const int before = at::get_num_threads();
  for (int threads : {1, 2}) {
    at::set_num_threads(threads);
    body();
  }
  at::set_num_threads(before);
}

// The message of the error that body() throws.
template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace cairn::kernels
