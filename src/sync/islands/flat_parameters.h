#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"

namespace cairn::sync {

// Some of a rank's parameters as one row of fp32 numbers: what rules of islands compute with.
class FlatParameters {
 public:
  FlatParameters() = default;
  FlatParameters(std::span<const mesh::NamedTensor> all, std::vector<size_t> which);
  // All of them.
  explicit FlatParameters(std::span<const mesh::NamedTensor> all);

  int64_t elements() const { return elements_; }
  at::Tensor zeros() const;                   // of that many elements, where the parameters are
  at::Tensor flatten() const;                 // a copy of the parameters as they are now
  void assign(const at::Tensor& flat) const;  // into the parameters
  // Views of a row by parameter, put in their places of `into`, which has one for each of all parameters.
  void views(const at::Tensor& flat, std::vector<at::Tensor>& into) const;
  std::vector<at::Tensor> views(const at::Tensor& flat) const;

 private:
  at::TensorOptions options() const;

  std::span<const mesh::NamedTensor> all_;
  std::vector<size_t> which_;
  int64_t elements_ = 0;
};

// |a - b| / |b|, and the cosine of the angle between them; 0 where there is none.
double relative_norm(const at::Tensor& difference, const at::Tensor& to);
double cosine(const at::Tensor& a, const at::Tensor& b);

}  // namespace cairn::sync
