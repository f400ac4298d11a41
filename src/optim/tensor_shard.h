#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/local_shard.h"

namespace cairn::comm {
class Group;
}

namespace cairn::optim {

// A parameter that the ranks of a group hold together, for rules that need more of it than this rank's part (tensor parallelism). Ranks may
// hold the same part: a key head that several ranks share.
struct TensorShard {
  comm::Group& group;                    // borrowed
  std::vector<int64_t> shape;            // of the whole parameter
  std::vector<mesh::LocalShard> shards;  // by rank of the group

  const mesh::LocalShard& mine() const;
  int64_t elements() const;             // of the whole parameter
  int64_t elements_of(int rank) const;  // of one rank's part
  // What this rank's elements count for in a sum over all ranks: a part that k ranks hold counts 1/k on each.
  double weight() const;
};

// The indices of one dim that a shard holds, cut out of a tensor that is whole along it; and back, into a vector of zeros.
at::Tensor cut_dim(const at::Tensor& whole, int64_t dim, const std::vector<mesh::Interval>& held);
void put_dim(const at::Tensor& whole /*[size]*/, const std::vector<mesh::Interval>& held, const at::Tensor& local);

}  // namespace cairn::optim
