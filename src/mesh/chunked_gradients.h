#pragma once
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/gradients.h"

namespace cairn::mesh {

// Splits one contribution to each of some parameters into `parts`, for a weight gradient that is computed chunk by chunk (chunked cross
// entropy). A sink that accumulates in fp32 gets each part as it comes. For a sink that rounds contributions to a lower precision the parts
// are summed here, in fp32, and flush() hands on the sum.
class ChunkedGradients final : public Gradients {
 public:
  ChunkedGradients(Gradients& into, const std::vector<ParamId>& ids, int64_t parts);

  void outer(ParamId id, const at::Tensor& in, const at::Tensor& dout) override;
  void outer_fp8(ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout) override;
  void outer_grouped(ParamId id, const at::Tensor& in, const at::Tensor& dout, const kernels::RowGroups& groups) override;
  void add(ParamId id, const at::Tensor& gradient) override;
  void add_rows(ParamId id, const at::Tensor& rows, const at::Tensor& values) override;
  void expect_more(ParamId id, int64_t contributions) override;
  bool wants(ParamId id) const override { return into_.wants(id); }

  void flush();  // call after the last part

 private:
  struct Sum {
    ParamId id;
    at::Tensor value;
  };
  // Undefined before the first part.
  at::Tensor& sum_of(ParamId id);

  Gradients& into_;
  std::vector<Sum> sums_;
};

}  // namespace cairn::mesh
