#pragma once
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/low_precision.h"
#include "mesh/flat_layout.h"
#include "mesh/gradients.h"

namespace cairn::mesh {

// The ordinary sink: sums contributions into one flat buffer, in the buffer's dtype (usually fp32). The first contribution of a step
// overwrites (=), later ones add (+=), so nothing is zeroed beforehand. Each piece is announced once, when its last contribution is added.
// For one thread.
class FlatGradients final : public Gradients {
 public:
  // Called with a piece's index as soon as its gradient is complete, while backward still runs.
  using Announce = std::function<void(int64_t index)>;

  // `uses[i]`: contributions that piece i receives in one pass. `flat` has layout.elements elements and is written in place.
  FlatGradients(FlatLayout layout, at::Tensor flat, std::vector<int32_t> uses);

  // Starts a step of `passes` backward passes. `some_leave_out`: passes may leave out layers, so that a piece receives fewer contributions.
  void begin(int64_t passes, Announce announce, bool some_leave_out = false);
  // Ends the step. A piece without contributions (a rank without samples, an unused parameter) becomes zero and is announced; the last
  // piece comes first. Contributions that passes left out count as zero.
  void finish();

  void outer(ParamId id, const at::Tensor& in, const at::Tensor& dout) override;
  void outer_fp8(ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout) override;
  void outer_grouped(ParamId id, const at::Tensor& in, const at::Tensor& dout, const kernels::RowGroups& groups) override;
  void add(ParamId id, const at::Tensor& gradient) override;
  void add_rows(ParamId id, const at::Tensor& rows, const at::Tensor& values) override;
  bool accumulates_in_fp32(ParamId) const override { return !kernels::is_half_precision(flat_); }
  void expect_more(ParamId id, int64_t contributions) override;

  const FlatLayout& layout() const { return layout_; }
  const at::Tensor& flat() const { return flat_; }

 private:
  bool fresh(ParamId id) const;  // no contribution in this step yet
  void contributed(ParamId id);

  FlatLayout layout_;
  at::Tensor flat_;
  std::vector<int32_t> uses_;
  std::vector<int64_t> due_;   // contributions still to come in this step
  std::vector<int64_t> more_;  // contributions of this step beyond uses_ (expect_more)
  std::vector<char> touched_;
  int64_t passes_ = 0;
  bool some_leave_out_ = false;
  Announce announce_;
};

}  // namespace cairn::mesh
