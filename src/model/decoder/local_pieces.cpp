#include "model/decoder/local_pieces.h"

#include "comm/group.h"
#include <ATen/core/IListRef.h>

#include "kernels/aten.h"
#include "mesh/local_shard.h"

namespace cairn::model {

std::vector<mesh::Interval> local_pieces(mesh::ParamId id, const std::vector<int64_t>& shape, size_t dim, const Call& call) {
  comm::Group* tp = call.axes.find("tp");
  if (!tp) return {{0, shape[dim]}};
  const mesh::Placement along_tp{{{"tp", call.weights.placement(id).on("tp")}}};
  return mesh::local_shard(along_tp, {{"tp", tp->rank(), tp->size()}}, shape).dims[dim];
}

bool is_whole(const std::vector<mesh::Interval>& pieces, int64_t size) {
  return pieces.size() == 1 && pieces[0].begin == 0 && pieces[0].end == size;
}

at::Tensor take_columns(const at::Tensor& whole, const std::vector<mesh::Interval>& pieces) {
  if (is_whole(pieces, whole.size(1))) return whole;
  std::vector<at::Tensor> parts;
  for (const mesh::Interval& piece : pieces) parts.push_back(whole.narrow(1, piece.begin, piece.length()));
  return parts.size() == 1 ? parts[0].contiguous() : at::cat(parts, 1);
}

at::Tensor spread_columns(const at::Tensor& local, const std::vector<mesh::Interval>& pieces, int64_t width) {
  if (is_whole(pieces, width)) return local;
  at::Tensor whole = at::zeros({local.size(0), width}, local.options());
  int64_t at = 0;
  for (const mesh::Interval& piece : pieces) {
    whole.narrow(1, piece.begin, piece.length()).copy_(local.narrow(1, at, piece.length()));
    at += piece.length();
  }
  return whole;
}

}  // namespace cairn::model
