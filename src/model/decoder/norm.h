#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "mesh/gradients.h"
#include "model/call.h"

namespace cairn::model {

// A norm over the last dim: RMSNorm (a gain) or LayerNorm (a gain and a shift).
struct Norm {
  enum class Kind { rms, layer };
  Kind kind = Kind::rms;
  mesh::ParamId weight = {};
  std::optional<mesh::ParamId> bias = {};  // LayerNorm only
  double eps = 1e-5;

  // `statistics` is kept for the gradients: 1 / rms per row, or mean and 1 / deviation.
  struct Result {
    at::Tensor y, statistics;
  };
  // `amax`, here and below, as in kernels/rms_norm.h.
  Result forward(const at::Tensor& x, const Call& call, at::Tensor* amax = nullptr) const;
  // forward in parts, for an x that is still in flight: copies of the parameters, memory for the result, and the norm itself.
  struct Held {
    at::Tensor gain, shift;
  };
  Held hold(const Call& call) const;
  Result results_for(const at::Tensor& x) const;
  void forward(const Result& into, const at::Tensor& x, const Held& held) const;
  // Overwrites dx with the input gradient, plus *add where given (the gradient of the residual path around the norm).
  void input_gradient(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics, const Call& call,
                      const at::Tensor* add = nullptr, at::Tensor* amax = nullptr) const;
  void weight_gradient(mesh::Gradients& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics,
                       const Call& call) const;
  // Both gradients in one pass over x, where a kernel has it. It also writes the norm's output to *y, so that it need not be kept.
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
