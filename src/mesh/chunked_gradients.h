#pragma once
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/gradients.h"

namespace cairn::mesh {

// A contribution to each of some parameters' gradients that comes in so many parts. A sink that adds up in fp32 gets them as they come; for
// one that rounds what it gets to less they add up here, in fp32, and it gets the sum.
class ChunkedGradients final : public Gradients {
 public:
  ChunkedGradients(Gradients& into, const std::vector<ParamId>& ids, int64_t parts);

  void outer(ParamId id, const at::Tensor& in, const at::Tensor& dout) override;
  void outer_fp8(ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout) override;
  void add(ParamId id, const at::Tensor& gradient) override;
  void add_rows(ParamId id, const at::Tensor& rows, const at::Tensor& values) override;
  void expect_more(ParamId id, int64_t contributions) override;

  void flush();  // after the last part

 private:
  struct Sum {
    ParamId id;
    at::Tensor value;
  };
  // Undefined: nothing has come yet.
  at::Tensor& sum_of(ParamId id);

  Gradients& into_;
  std::vector<Sum> sums_;
};

}  // namespace cairn::mesh
