#include "mesh/dtensor.h"

#include <algorithm>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "mesh/dtensor/impl.h"
#include "mesh/redistribute.h"

namespace cairn::mesh {
namespace {

Placement placement_along(const std::string& axis, const Placement::How& how) {
  return std::holds_alternative<Replicate>(how) ? Placement{} : Placement{{{axis, how}}};
}

// Rules know ascending intervals: no tables of owners, no parts in another order.
bool has_rules(const Placement::How& how) {
  if (std::holds_alternative<Ragged>(how)) return false;
  const auto* split = std::get_if<Split>(&how);
  return !split || std::all_of(split->pieces.begin(), split->pieces.end(),
                               [](const std::vector<Interval>& held) { return std::is_sorted(held.begin(), held.end()); });
}

}  // namespace

DTensorAxis::DTensorAxis(comm::World& world, std::string axis, std::vector<int> ranks) : world_(world) {
  const auto me = std::find(ranks.begin(), ranks.end(), world.rank());
  CAIRN_CHECK(me != ranks.end(), "rank {} is not one of the {} along {}", world.rank(), ranks.size(), axis);
  rank_ = static_cast<int>(me - ranks.begin());
  mesh_.axes = {{std::move(axis), static_cast<int>(ranks.size())}};
  mesh_.ranks = std::move(ranks);
}

at::Tensor DTensorAxis::redistribute(const at::Tensor& local, const Placement::How& from, const Placement::How& to,
                                     const std::vector<int64_t>& shape, const std::string& what) {
  if (from == to || size() == 1) return local;
  const auto plan = plans_.get({{mesh_, placement_along(name(), from)}, {mesh_, placement_along(name(), to)}, shape});
  return mesh::redistribute(world_, local.contiguous(), *plan, {comm::Purpose::activation, what});
}

Split canonical(Split split, int64_t size, int ranks) {
  if (split.pieces.empty())
    for (int r = 0; r < ranks; ++r) split.pieces.push_back({even_part(size, ranks, r)});
  for (std::vector<Interval>& held : split.pieces) {
    std::vector<Interval> merged;
    for (const Interval& one : held) {
      if (one.length() == 0) continue;
      merged.empty() || merged.back().end != one.begin ? merged.push_back(one) : static_cast<void>(merged.back().end = one.end);
    }
    held = std::move(merged);
  }
  return split;
}

Split even_split(int64_t dim, int64_t size, int ranks) { return canonical({dim, {}}, size, ranks); }

DTensorImpl::DTensorImpl(std::shared_ptr<DTensorAxis> axis, at::Tensor local, Placement::How how, const std::vector<int64_t>& shape)
    : TensorImpl(c10::DispatchKeySet(kDTensorKey) | local.key_set(), local.dtype(), local.device()),
      axis_(std::move(axis)),
      local_(std::move(local)),
      how_(std::move(how)) {
  set_storage_access_should_throw();
  set_sizes_contiguous(shape);
}

template <typename Version>
c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::copied(Version&& version, bool may_change) const {
  auto copy = c10::make_intrusive<DTensorImpl>(axis_, local_, how_, sizes().vec());
  copy->set_version_counter(std::forward<Version>(version));
  copy->set_allow_tensor_metadata_change(may_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version, bool may_change) const {
  return copied(version, may_change);
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version, bool may_change) const {
  return copied(std::move(version), may_change);
}

void DTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  const auto* from = dynamic_cast<const DTensorImpl*>(impl.get());
  CAIRN_CHECK(from, "a plain tensor cannot become the data of a DTensor");
  axis_ = from->axis_, local_ = from->local_, how_ = from->how_;
  set_sizes_contiguous(from->sizes());
}

DTensorImpl* dtensor_impl(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->key_set().has(kDTensorKey)) return nullptr;
  return static_cast<DTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::Tensor dtensor_from_local(std::shared_ptr<DTensorAxis> axis, const at::Tensor& local, const Placement::How& how,
                              std::vector<int64_t> shape) {
  register_dtensor_dispatch();
  const int ranks = axis->size();
  const at::Tensor held = local.detach();
  Placement::How placed = how;
  if (auto* split = std::get_if<Split>(&placed)) *split = canonical(*split, shape.at(static_cast<size_t>(split->dim)), ranks);
  if (has_rules(placed) || ranks == 1)
    return at::detail::make_tensor<DTensorImpl>(std::move(axis), held, ranks == 1 ? Replicate{} : placed, shape);
  const at::Tensor whole = axis->redistribute(held, placed, Replicate{}, shape, "gather");
  return at::detail::make_tensor<DTensorImpl>(std::move(axis), whole, Replicate{}, shape);
}

bool is_dtensor(const at::Tensor& tensor) { return dtensor_impl(tensor) != nullptr; }

const Placement::How& dtensor_placement(const at::Tensor& dtensor) {
  const DTensorImpl* impl = dtensor_impl(dtensor);
  CAIRN_CHECK(impl, "a plain tensor has no placement");
  return impl->how();
}

at::Tensor to_local(const std::shared_ptr<DTensorAxis>& axis, const at::Tensor& tensor, const Placement::How& how,
                    const std::string& what) {
  const DTensorImpl* impl = dtensor_impl(tensor);
  Placement::How to = how;
  if (auto* split = std::get_if<Split>(&to)) *split = canonical(*split, tensor.size(split->dim), axis->size());
  const at::AutoDispatchBelowADInplaceOrView below;
  if (!impl) return axis->redistribute(tensor, Replicate{}, to, tensor.sizes().vec(), what);
  return axis->redistribute(impl->local(), impl->how(), to, tensor.sizes().vec(), what);
}

at::Tensor full_tensor(const at::Tensor& tensor) {
  const DTensorImpl* impl = dtensor_impl(tensor);
  return impl ? to_local(impl->axis(), tensor, Replicate{}, "full_tensor") : tensor;
}

}  // namespace cairn::mesh
