#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "mesh/gradients.h"
#include "model/call.h"

namespace cairn::model {

// The norm of a block's input over its last dim: RMSNorm (a gain) or LayerNorm (a gain and a shift).
struct Norm {
  enum class Kind { rms, layer };
  Kind kind = Kind::rms;
  mesh::ParamId weight = {};
  std::optional<mesh::ParamId> bias = {};  // of a LayerNorm
  double eps = 1e-5;

  // What the gradients need again: 1 / rms per row, or mean and 1 / deviation.
  struct Result {
    at::Tensor y, statistics;
  };
  // `amax`, here and below, as in kernels/rms_norm.h.
  Result forward(const at::Tensor& x, const Call& call, at::Tensor* amax = nullptr) const;
  // The same in parts, for an x that comes later: its parameters as they are now, room for the result, and the norm itself.
  struct Held {
    at::Tensor gain, shift;
  };
  Held hold(const Call& call) const;
  Result results_for(const at::Tensor& x) const;
  void forward(const Result& into, const at::Tensor& x, const Held& held) const;
  // dx is overwritten: the input gradient, plus *add where given (what went round the norm on the residual path).
  void input_gradient(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics, const Call& call,
                      const at::Tensor* add = nullptr, at::Tensor* amax = nullptr) const;
  void weight_gradient(mesh::Gradients& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics,
                       const Call& call) const;
  // Both gradients in one pass over x, where there is such a thing; then also what the norm came to, into *y, so that it need not be kept.
  bool has_fused_backward(const at::Tensor& x) const;
  struct Back {
    const at::Tensor& dx;
    const at::Tensor* y = nullptr;
    at::Tensor* amax = nullptr;  // of dx
  };
  at::Tensor /*the gain's gradient*/ backward(const Back& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics,
                                              const Call& call, const at::Tensor* add = nullptr) const;
  at::Tensor plain(const at::Tensor& x, const Call& call) const;
  std::vector<mesh::ParamId> parameters() const;
};

}  // namespace cairn::model
