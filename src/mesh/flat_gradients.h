#pragma once
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/low_precision.h"
#include "mesh/flat_layout.h"
#include "mesh/gradients.h"

namespace cairn::mesh {

// The ordinary sink: sums contributions in fp32 (or the buffer's dtype) into one flat buffer. The first contribution of a step
// overwrites, so nothing is cleared beforehand. Each piece is announced once, when all that is due has come.
class FlatGradients final : public Gradients {
 public:
  // Called with a piece's index while backward still runs, as soon as its gradient is complete.
  using Announce = std::function<void(int64_t index)>;

  // `uses[i]`: how many contributions piece i receives in one pass. `flat` has layout.elements elements and is written in place.
  FlatGradients(FlatLayout layout, at::Tensor flat, std::vector<int32_t> uses);

  // Starts a step of `passes` backward passes.
  void begin(int64_t passes, Announce announce);
  // Ends it: a piece that nothing reached (a rank without samples, an unused parameter) becomes zero and is announced, last first.
  void finish();

  void outer(ParamId id, const at::Tensor& in, const at::Tensor& dout) override;
  void outer_fp8(ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout) override;
  void add(ParamId id, const at::Tensor& gradient) override;
  void add_rows(ParamId id, const at::Tensor& rows, const at::Tensor& values) override;
  bool accumulates_in_fp32(ParamId) const override { return !kernels::is_half_precision(flat_); }
  void expect_more(ParamId id, int64_t contributions) override;

  const FlatLayout& layout() const { return layout_; }
  const at::Tensor& flat() const { return flat_; }

 private:
  bool fresh(ParamId id) const;  // nothing has been added yet in this step
  void contributed(ParamId id);

  FlatLayout layout_;
  at::Tensor flat_;
  std::vector<int32_t> uses_;
  std::vector<int64_t> due_;   // contributions still to come in this step
  std::vector<int64_t> more_;  // of those that are due in it: beyond what uses say
  std::vector<char> touched_;
  int64_t passes_ = 0;
  Announce announce_;
};

}  // namespace cairn::mesh
