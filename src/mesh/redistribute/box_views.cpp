#include "mesh/redistribute/box_views.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::mesh {
namespace {

// The views as one flat view, where they lie one after the other in one storage; else undefined.
at::Tensor as_one(const std::vector<at::Tensor>& views, at::ScalarType dtype) {
  if (views.empty() || views.front().scalar_type() != dtype) return {};
  const at::Tensor& first = views.front();
  int64_t end = first.storage_offset();
  for (const at::Tensor& view : views) {
    if (!view.is_contiguous() || !view.is_alias_of(first) || view.storage_offset() != end) return {};
    end += view.numel();
  }
  return first.as_strided({end - first.storage_offset()}, {1}, first.storage_offset());
}

int64_t elements_of(const std::vector<at::Tensor>& views) {
  int64_t n = 0;
  for (const at::Tensor& view : views) n += view.numel();
  return n;
}

// Calls with each view and its part of the buffer.
template <typename Act>
void each_part(const std::vector<at::Tensor>& views, const at::Tensor& flat, const Act& act) {
  int64_t at = 0;
  for (const at::Tensor& view : views) {
    act(view, flat.narrow(0, at, view.numel()).view(view.sizes()));
    at += view.numel();
  }
}

}  // namespace

BoxViews::BoxViews(const LocalShard& local_shard, const at::Tensor& local) : boxes_(local_shard.boxes()) {
  for (const Box& box : boxes_) {
    at::Tensor view = local;
    const Box place = local_shard.local(box);
    for (size_t i = 0; i < place.dims.size(); ++i) view = view.narrow(static_cast<int64_t>(i), place.dims[i].begin, place.dims[i].length());
    views_.push_back(std::move(view));
  }
}

BoxViews::BoxViews(std::vector<Box> boxes, const at::TensorOptions& options) : boxes_(std::move(boxes)) {
  int64_t elements = 0;
  for (const Box& box : boxes_) elements += box.elements();
  const at::Tensor flat = at::empty({elements}, options);
  int64_t at = 0;
  for (const Box& box : boxes_) {
    std::vector<int64_t> shape;
    for (const Interval& dim : box.dims) shape.push_back(dim.length());
    views_.push_back(flat.narrow(0, at, box.elements()).view(shape));
    at += box.elements();
  }
}

at::Tensor BoxViews::view(const Box& box) const {
  const auto held = std::find_if(boxes_.begin(), boxes_.end(), [&](const Box& one) { return contains(one, box); });
  CAIRN_CHECK(held != boxes_.end(), "{} is in none of the {} boxes held here", to_string(box), boxes_.size());
  at::Tensor view = views_[static_cast<size_t>(held - boxes_.begin())];
  for (size_t i = 0; i < box.dims.size(); ++i)
    view = view.narrow(static_cast<int64_t>(i), box.dims[i].begin - held->dims[i].begin, box.dims[i].length());
  return view;
}

at::Tensor joined(const std::vector<at::Tensor>& views, const at::TensorOptions& options) {
  if (at::Tensor one = as_one(views, c10::typeMetaToScalarType(options.dtype())); one.defined()) return one;
  const at::Tensor flat = at::empty({elements_of(views)}, options);
  each_part(views, flat, [](const at::Tensor& view, const at::Tensor& part) { part.copy_(view); });
  return flat;
}

StagingBuffer::StagingBuffer(std::vector<at::Tensor> views, const at::TensorOptions& options) : views_(std::move(views)) {
  flat_ = as_one(views_, c10::typeMetaToScalarType(options.dtype()));
  in_place_ = flat_.defined();
  if (!in_place_) flat_ = at::empty({elements_of(views_)}, options);
}

void StagingBuffer::pack() const {
  if (!in_place_) each_part(views_, flat_, [](const at::Tensor& view, const at::Tensor& part) { part.copy_(view); });
}

void StagingBuffer::unpack() const {
  if (!in_place_) each_part(views_, flat_, [](const at::Tensor& view, const at::Tensor& part) { view.copy_(part); });
}

}  // namespace cairn::mesh
