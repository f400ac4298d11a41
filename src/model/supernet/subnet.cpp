#include "model/supernet/subnet.h"

#include "kernels/aten.h"
#include "kernels/gemm.h"
#include "model/call.h"

namespace cairn::model {

bool runs_in(const Call& call, int64_t stage, int64_t place) {
  return !call.subnet || place < call.subnet->depth[static_cast<size_t>(stage)];
}

int64_t width_in(const Call& call, size_t layer, int64_t whole) { return call.subnet ? call.subnet->width[layer] : whole; }

at::Tensor padded(const at::Tensor& value, const std::vector<int64_t>& sizes) {
  if (value.sizes() == at::IntArrayRef(sizes)) return value;
  const at::Tensor whole = at::zeros(sizes, value.options());
  at::Tensor corner = whole;
  for (int64_t dim = 0; dim < value.dim(); ++dim) corner = corner.narrow(dim, 0, value.size(dim));
  corner.copy_(value);
  return whole;
}

void add_outer_prefix(mesh::Gradients& into, mesh::ParamId id, const at::Tensor& x, const at::Tensor& dy,
                      const std::vector<int64_t>& sizes) {
  if (dy.size(1) == sizes[0] && x.size(1) == sizes[1]) return into.outer(id, x, dy);
  if (!into.wants(id)) return;
  const at::ScalarType precise = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor corner = at::empty({dy.size(1), x.size(1)}, x.options().dtype(precise));
  kernels::linear_backward_weight(corner, dy, x);
  into.add(id, padded(corner, sizes));
}

}  // namespace cairn::model
