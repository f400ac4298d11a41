// Inside of DTensors: the tensor itself, and one operand of an operation.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "mesh/dtensor.h"

namespace cairn::mesh {

// The dispatch key of DTensors. It lies below autograd and above the backends, and libtorch leaves it to other libraries (torchdistx' fake
// tensors had it).
inline constexpr c10::DispatchKey kDTensorKey = c10::DispatchKey::Fake;

// Sizes are those of the whole. It has no storage: whoever asks for a data pointer gets an error. In-place operations replace `local`.
class DTensorImpl final : public c10::TensorImpl {
 public:
  DTensorImpl(std::shared_ptr<DTensorAxis> axis, at::Tensor local, Placement::How how, const std::vector<int64_t>& shape);

  const std::shared_ptr<DTensorAxis>& axis() const { return axis_; }
  const at::Tensor& local() const { return local_; }
  const Placement::How& how() const { return how_; }
  void replace(at::Tensor local, Placement::How how) { local_ = std::move(local), how_ = std::move(how); }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version, bool may_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version, bool may_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;

 private:
  const char* tensorimpl_type_name() const override { return "DTensorImpl"; }
  template <typename Version>
  c10::intrusive_ptr<TensorImpl> copied(Version&& version, bool may_change) const;

  std::shared_ptr<DTensorAxis> axis_;
  at::Tensor local_;
  Placement::How how_;
};

DTensorImpl* dtensor_impl(const at::Tensor& tensor);  // null: a plain tensor

// Handles every operation on DTensors; registers with libtorch's dispatcher on the first call.
void register_dtensor_dispatch();

}  // namespace cairn::mesh
