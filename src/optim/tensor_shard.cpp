#include "optim/tensor_shard.h"

#include <algorithm>

#include <ATen/core/IListRef.h>
#include <c10/util/accumulate.h>

#include "comm/group.h"
#include "kernels/aten.h"

namespace cairn::optim {

const mesh::LocalShard& TensorShard::mine() const { return shards[static_cast<size_t>(group.rank())]; }

int64_t TensorShard::elements() const { return c10::multiply_integers(shape); }

int64_t TensorShard::elements_of(int rank) const { return c10::multiply_integers(shards[static_cast<size_t>(rank)].local_shape()); }

double TensorShard::weight() const { return 1.0 / static_cast<double>(std::count(shards.begin(), shards.end(), mine())); }

at::Tensor cut_dim(const at::Tensor& whole, int64_t dim, const std::vector<mesh::Interval>& held) {
  std::vector<at::Tensor> parts{whole.narrow(dim, 0, 0)};
  for (const mesh::Interval& one : held) parts.push_back(whole.narrow(dim, one.begin, one.length()));
  return parts.size() == 2 ? parts[1] : at::cat(parts, dim);
}

void put_dim(const at::Tensor& whole, const std::vector<mesh::Interval>& held, const at::Tensor& local) {
  int64_t next = 0;
  for (const mesh::Interval& one : held) {
    whole.narrow(0, one.begin, one.length()).copy_(local.narrow(0, next, one.length()));
    next += one.length();
  }
}

}  // namespace cairn::optim
