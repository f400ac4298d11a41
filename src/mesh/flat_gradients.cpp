#include "mesh/flat_gradients.h"

#include <utility>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/embedding.h"
#include "kernels/fp8.h"
#include "kernels/gemm.h"
#include "kernels/grouped_gemm.h"

namespace cairn::mesh {

FlatGradients::FlatGradients(FlatLayout layout, at::Tensor flat, std::vector<int32_t> uses)
    : layout_(std::move(layout)),
      flat_(std::move(flat)),
      uses_(std::move(uses)),
      due_(uses_.size(), 0),
      more_(uses_.size(), 0),
      touched_(uses_.size(), 0) {
  CAIRN_CHECK(flat_.numel() == layout_.elements, "a gradient buffer of {} elements for a layout of {}", flat_.numel(), layout_.elements);
  CAIRN_CHECK(uses_.size() == layout_.pieces.size(), "{} uses for {} pieces", uses_.size(), layout_.pieces.size());
}

void FlatGradients::begin(int64_t passes, Announce announce, bool some_leave_out) {
  passes_ = passes;
  some_leave_out_ = some_leave_out;
  announce_ = std::move(announce);
  for (size_t i = 0; i < due_.size(); ++i) {
    due_[i] = uses_[i] * passes;
    more_[i] = 0;
    touched_[i] = 0;
  }
}

void FlatGradients::finish() {
  for (size_t i = due_.size(); i-- > 0;) {
    const bool announced = due_[i] == 0 && uses_[i] * passes_ > 0;
    if (announced) continue;
    CAIRN_CHECK(!touched_[i] || some_leave_out_, "the gradient of {} lacks {} of {} contributions", layout_.pieces[i].name, due_[i],
                uses_[i] * passes_ + more_[i]);
    if (!touched_[i]) layout_.view(flat_, {static_cast<int32_t>(i)}).zero_();
    if (announce_) announce_(static_cast<int64_t>(i));
  }
  announce_ = nullptr;
}

bool FlatGradients::fresh(ParamId id) const {
  const bool first = !touched_[static_cast<size_t>(id.first)];
  for (int32_t i = 1; i < id.count; ++i)
    CAIRN_CHECK(first == !touched_[static_cast<size_t>(id.first + i)], "gradients of {} and its neighbours came apart",
                layout_.pieces[static_cast<size_t>(id.first)].name);
  return first;
}

void FlatGradients::contributed(ParamId id) {
  for (int32_t i = id.first + id.count - 1; i >= id.first; --i) {
    const auto at = static_cast<size_t>(i);
    CAIRN_CHECK(due_[at] > 0, "the gradient of {} received more than the {} contributions due", layout_.pieces[at].name,
                uses_[at] * passes_ + more_[at]);
    touched_[at] = 1;
    if (--due_[at] == 0 && announce_) announce_(i);
  }
}

void FlatGradients::outer(ParamId id, const at::Tensor& in, const at::Tensor& dout) {
  at::Tensor gradient = layout_.view(flat_, id);
  const bool accumulate = !fresh(id);
  kernels::linear_backward_weight(gradient, dout, in, accumulate);  // bf16 inputs are accumulated in the buffer's dtype
  contributed(id);
}

void FlatGradients::outer_fp8(ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout) {
  at::Tensor gradient = layout_.view(flat_, id);
  const bool accumulate = !fresh(id);
  kernels::linear_backward_weight(gradient, dout, in, accumulate);
  contributed(id);
}

void FlatGradients::outer_grouped(ParamId id, const at::Tensor& in, const at::Tensor& dout, const kernels::RowGroups& groups) {
  const at::Tensor gradient = layout_.view(flat_, id);
  kernels::grouped_linear_backward_weight(gradient, dout, in, groups, /*accumulate=*/!fresh(id));
  contributed(id);
}

void FlatGradients::add(ParamId id, const at::Tensor& value) {
  at::Tensor gradient = layout_.view(flat_, id);
  fresh(id) ? gradient.copy_(value) : gradient.add_(value);
  contributed(id);
}

void FlatGradients::expect_more(ParamId id, int64_t contributions) {
  for (int32_t i = id.first; i < id.first + id.count; ++i) {
    const auto at = static_cast<size_t>(i);
    CAIRN_CHECK(due_[at] > 0, "more of the gradient of {}, which is complete", layout_.pieces[at].name);
    due_[at] += contributions;
    more_[at] += contributions;
  }
}

void FlatGradients::add_rows(ParamId id, const at::Tensor& rows, const at::Tensor& values) {
  at::Tensor gradient = layout_.view(flat_, id);
  if (fresh(id)) gradient.zero_();
  kernels::embedding_backward(gradient, rows, values);
  contributed(id);
}

}  // namespace cairn::mesh
