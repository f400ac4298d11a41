#include "model/stream.h"

#include "comm/group.h"
#include "kernels/aten.h"

namespace cairn::model {
namespace {

std::vector<int64_t> element_counts(int64_t tokens, int64_t width, int ranks) {
  std::vector<int64_t> counts = comm::even_counts(tokens, ranks);
  for (int64_t& count : counts) count *= width;
  return counts;
}

}  // namespace

Extent extent(const at::Tensor& stream, const Call& call) {
  if (call.slice.length > 0) return {call.slice.batch, call.slice.length};
  return {stream.size(0), stream.size(1)};
}

at::Tensor gather_tokens(const at::Tensor& here, const Extent& extent, const Call& call, std::string_view what) {
  comm::Group* tp = call.axes.find("tp");
  if (!tp) return here;
  const at::Tensor all = at::empty({extent.tokens(), here.size(1)}, here.options());
  tp->all_gather(all, here.contiguous(), {comm::Purpose::activation, what}, element_counts(extent.tokens(), here.size(1), tp->size()))
      .wait();
  return all;
}

at::Tensor reduce_tokens(const at::Tensor& terms, const Call& call, std::string_view what) {
  comm::Group* tp = call.axes.find("tp");
  if (!tp) return terms;
  const int64_t mine = mesh::even_part(terms.size(0), tp->size(), tp->rank()).length();
  const at::Tensor here = at::empty({mine, terms.size(1)}, terms.options());
  tp->reduce_scatter(here, terms, comm::Reduce::sum, {comm::Purpose::activation, what},
                     element_counts(terms.size(0), terms.size(1), tp->size()))
      .wait();
  return here;
}

at::Tensor own_tokens(const at::Tensor& whole, const Call& call) {
  comm::Group* tp = call.axes.find("tp");
  if (!tp) return whole;
  const mesh::Interval mine = mesh::even_part(whole.size(0), tp->size(), tp->rank());
  return whole.narrow(0, mine.begin, mine.length());
}

at::Tensor as_stream(const at::Tensor& rows, const Extent& extent, const Call& call) {
  return call.axes.find("tp") ? rows.unsqueeze(0) : rows.view({extent.batch, extent.length, rows.size(-1)});
}

mesh::Interval rows_here(mesh::ParamId table, int64_t size, const Call& call) {
  const mesh::Placement::How how = call.weights.placement(table).on("tp");
  const auto* split = std::get_if<mesh::Split>(&how);
  comm::Group* tp = call.axes.find("tp");
  if (!split || !tp) return {0, size};
  if (split->pieces.empty()) return mesh::even_part(size, tp->size(), tp->rank());
  const std::vector<mesh::Interval>& mine = split->pieces[static_cast<size_t>(tp->rank())];
  return mine.empty() ? mesh::Interval{0, 0} : mine.front();
}

}  // namespace cairn::model
