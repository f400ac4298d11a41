#include "parallel/column_embedding.h"

#include <numeric>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "kernels/embedding.h"

namespace cairn::parallel {
namespace {

int64_t rows_of_all(const std::vector<int64_t>& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

std::vector<int64_t> times(std::vector<int64_t> counts, int64_t factor) {
  for (int64_t& count : counts) count *= factor;
  return counts;
}

void check_rows(const comm::Group& group, const std::vector<int64_t>& rows, int64_t here) {
  CAIRN_CHECK(static_cast<int>(rows.size()) == group.size() && rows[static_cast<size_t>(group.rank())] == here,
              "counts of {} ranks for {}, {} rows at rank {}", rows.size(), group.size(), here, group.rank());
}

}  // namespace

ColumnEmbedding::ColumnEmbedding(comm::Group& group, int64_t width)
    : group_(group), width_(width), local_((width + group.size() - 1) / group.size()) {}

at::Tensor ColumnEmbedding::shard_of(const at::Tensor& table) const {
  const int64_t first = std::min(width_, group_.rank() * local_), columns = std::min(local_, width_ - first);
  const at::Tensor shard = at::zeros({table.size(0), local_}, table.options());
  shard.narrow(1, 0, columns).copy_(table.narrow(1, first, columns));
  return shard;
}

at::Tensor ColumnEmbedding::gather(const at::Tensor& shard) const {
  const at::Tensor all = at::empty({group_.size(), shard.size(0), local_}, shard.options());
  group_.all_gather(all, shard.contiguous(), {comm::Purpose::parameter, "columns of the embedding"}).wait();
  return all.permute({1, 0, 2}).reshape({shard.size(0), group_.size() * local_}).narrow(1, 0, width_).contiguous();
}

at::Tensor ColumnEmbedding::forward(const at::Tensor& ids, const at::Tensor& shard, const std::vector<int64_t>& rows,
                                    at::Tensor& all_ids) const {
  const int64_t here = ids.numel(), n = group_.size();
  check_rows(group_, rows, here);
  all_ids = at::empty({rows_of_all(rows)}, ids.options());
  group_.all_gather(all_ids, ids.reshape({-1}).contiguous(), {comm::Purpose::data, "token ids"}, rows).wait();
  const at::Tensor looked_up = at::empty({all_ids.size(0), local_}, shard.options()),
                   arrived = at::empty({n, here, local_}, shard.options());
  kernels::embedding(looked_up, shard, all_ids);
  const std::vector<int64_t> from_each(static_cast<size_t>(n), here * local_);
  group_.all_to_all(arrived, looked_up, {comm::Purpose::activation, "columns of embeddings"}, from_each, times(rows, local_)).wait();
  return arrived.permute({1, 0, 2}).reshape({here, n * local_}).narrow(1, 0, width_).contiguous();
}

void ColumnEmbedding::backward(const at::Tensor& dshard, const at::Tensor& all_ids, const at::Tensor& dy,
                               const std::vector<int64_t>& rows) const {
  const int64_t here = dy.size(0), n = group_.size();
  check_rows(group_, rows, here);
  at::Tensor padded = at::zeros({here, n * local_}, dy.options());
  padded.narrow(1, 0, width_).copy_(dy);
  padded = padded.view({here, n, local_}).permute({1, 0, 2}).contiguous();
  const at::Tensor arrived = at::empty({all_ids.size(0), local_}, dy.options());
  const std::vector<int64_t> to_each(static_cast<size_t>(n), here * local_);
  group_.all_to_all(arrived, padded, {comm::Purpose::gradient, "columns of embeddings"}, times(rows, local_), to_each).wait();
  kernels::embedding_backward(dshard, all_ids, arrived);
}

}  // namespace cairn::parallel
