#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::comm {
class Group;
}

namespace cairn::parallel {

// An embedding whose table is split by columns over the ranks of data parallelism (MoESys, Yu et al. 2022, arXiv:2205.10034). Of a table
// [V, h], each of n ranks holds [V, w], w = ceil(h / n); the last columns of the last ranks are padding. b_r: tokens of rank r.
//
//   forward    all-gather of ids -> [b]     look up -> [b, w]           all-to-all -> [b_r, h]      b = sum of b_r
//   backward   all-to-all of dy -> [b, w]   dtable[ids[i]] += dy[i]
//
// Exact: the gradient of a rank's columns is complete, so nothing of size [V, h] is summed over ranks, and optimizer state is 1/n. The
// order of the sum is that of the ranks and then of their tokens.
class ColumnEmbedding {
 public:
  ColumnEmbedding(comm::Group& group, int64_t width);

  int64_t local_width() const { return local_; }
  at::Tensor shard_of(const at::Tensor& table) const;  // this rank's columns of a whole table, padded with zeros
  at::Tensor gather(const at::Tensor& shard) const;    // the whole table [V, h] again, on every rank

  // `rows[r]`: tokens of rank r; the same on all ranks. `ids` int64 [rows[here]]. `all_ids` becomes the ids of all ranks: backward needs
  // them.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& shard, const std::vector<int64_t>& rows, at::Tensor& all_ids) const;
  // Adds to the gradient of the shard. `dy` [rows[here], h].
  void backward(const at::Tensor& dshard, const at::Tensor& all_ids, const at::Tensor& dy, const std::vector<int64_t>& rows) const;

 private:
  comm::Group& group_;
  int64_t width_, local_;
};

}  // namespace cairn::parallel
