#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"

namespace cairn::mesh {
class WriteBarrier;
}

namespace cairn::sync {

// Some of a rank's parameters seen as one flat fp32 tensor, in which the rules between islands compute. The parameters may have any type.
class FlatParameters {
 public:
  FlatParameters() = default;
  // `barrier` hears of parameters before they change; null: nobody asks.
  FlatParameters(std::span<const mesh::NamedTensor> all, std::vector<size_t> which, mesh::WriteBarrier* barrier = nullptr);
  // All parameters.
  explicit FlatParameters(std::span<const mesh::NamedTensor> all, mesh::WriteBarrier* barrier = nullptr);

  int64_t elements() const { return elements_; }
  at::Tensor zeros() const;                   // [elements], fp32, on the device of the parameters
  at::Tensor flatten() const;                 // a copy of the current values, [elements], fp32
  void assign(const at::Tensor& flat) const;  // copies a flat tensor into the parameters
  // Views of a flat tensor by parameter, written to `into` at each parameter's index among all.
  void views(const at::Tensor& flat, std::vector<at::Tensor>& into) const;
  std::vector<at::Tensor> views(const at::Tensor& flat) const;

 private:
  at::TensorOptions options() const;

  std::span<const mesh::NamedTensor> all_;
  std::vector<size_t> which_;
  mesh::WriteBarrier* barrier_ = nullptr;
  int64_t elements_ = 0;
};

// |difference| / |to|; 0 if `to` is 0. The cosine of the angle between a and b; 0 if either is 0.
double relative_norm(const at::Tensor& difference, const at::Tensor& to);
double cosine(const at::Tensor& a, const at::Tensor& b);

}  // namespace cairn::sync
