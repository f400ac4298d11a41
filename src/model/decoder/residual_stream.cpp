#include "model/decoder/residual_stream.h"

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "kernels/dropout.h"
#include "kernels/low_precision.h"
#include "model/decoder/rows.h"

namespace cairn::model {
namespace {

std::vector<int64_t> element_counts(int64_t tokens, int64_t width, int ranks) {
  std::vector<int64_t> counts = comm::even_counts(tokens, ranks);
  for (int64_t& count : counts) count *= width;
  return counts;
}

// The rows of one rank.
struct Chunk {
  int64_t begin, count;
  at::Tensor of(const at::Tensor& matrix) const { return matrix.narrow(0, begin, count); }
};

Chunk chunk_of(const comm::Group& tp, int64_t tokens, int rank) {
  const mesh::Interval rows = mesh::even_part(tokens, tp.size(), ((rank % tp.size()) + tp.size()) % tp.size());
  return {rows.begin, rows.length()};
}

// A ring all-gather: while a chunk is used, it is sent on and the next one arrives.
void ring_gather(comm::Group& tp, const at::Tensor& all, const at::Tensor& here, std::string_view what, const OnRows& use) {
  const int n = tp.size(), me = tp.rank(), right = (me + 1) % n, left = (me + n - 1) % n;
  const comm::Label label{comm::Purpose::activation, what};
  chunk_of(tp, all.size(0), me).of(all).copy_(here);
  std::vector<comm::Work> sent;
  for (int step = 0; step < n; ++step) {
    const Chunk at_hand = chunk_of(tp, all.size(0), me - step);
    comm::Work coming;
    if (step + 1 < n) {
      coming = tp.recv(chunk_of(tp, all.size(0), me - step - 1).of(all), left, label);
      sent.push_back(tp.send(at_hand.of(all), right, label));
      tp.progress();
    }
    use(all, at_hand.begin, at_hand.count);
    coming.wait();
  }
  comm::Work::all(std::move(sent)).wait();
}

// A reduce-scatter of rows that are made one rank's after the other: those of a rank are sent to it while the next are made. Every rank
// gets the terms of all and adds them in rank order, in fp32 where they are in half precision, and so rounds once, as Group::reduce_scatter
// does.
at::Tensor direct_reduce(comm::Group& tp, const at::Tensor& terms, std::string_view what, const OnRows& make) {
  const int n = tp.size(), me = tp.rank();
  const comm::Label label{comm::Purpose::activation, what};
  const Chunk mine = chunk_of(tp, terms.size(0), me);
  std::vector<at::Tensor> versions(static_cast<size_t>(n));  // of this rank's rows, by rank
  std::vector<comm::Work> coming, sent;
  for (int step = 1; step < n; ++step) {  // in the order in which they are sent
    const int from = (me + n - step) % n;
    at::Tensor& version = versions[static_cast<size_t>(from)];
    version = at::empty({mine.count, terms.size(1)}, terms.options());
    coming.push_back(tp.recv(version, from, label));
  }
  for (int step = 1; step < n; ++step) {
    const int to = (me + step) % n;
    const Chunk chunk = chunk_of(tp, terms.size(0), to);
    make(terms, chunk.begin, chunk.count);
    sent.push_back(tp.send(chunk.of(terms), to, label));
    tp.progress();
  }
  make(terms, mine.begin, mine.count);
  versions[static_cast<size_t>(me)] = mine.of(terms);
  comm::Work::all(std::move(coming)).wait();
  at::Tensor sum = versions.front().to(kernels::is_half_precision(terms) ? at::kFloat : terms.scalar_type(), /*non_blocking=*/false,
                                       /*copy=*/true);
  for (int rank = 1; rank < n; ++rank) sum.add_(versions[static_cast<size_t>(rank)]);
  comm::Work::all(std::move(sent)).wait();
  return sum.to(terms.scalar_type());
}

}  // namespace

TokenLayout layout_in(const Call& call, TokenLayout tokens) {
  return call.cache || call.options.slice > 0 ? TokenLayout::replicated : tokens;
}

bool replicated_over_tp(const Call& call, TokenLayout tokens) {
  return layout_in(call, tokens) == TokenLayout::replicated && call.axes.find("tp");
}

BatchShape batch_shape(const at::Tensor& stream, const Call& call) {
  if (call.slice.length > 0) return {call.slice.batch, call.slice.length};
  return {stream.size(0), stream.size(1)};
}

at::Tensor gather_tokens(const at::Tensor& here, const BatchShape& batch_shape, const Call& call, std::string_view what, const OnRows& use,
                         TokenLayout tokens) {
  comm::Group* tp = layout_in(call, tokens) == TokenLayout::replicated ? nullptr : call.axes.find("tp");
  if (!tp) {
    if (use) use(here, 0, here.size(0));
    return here;
  }
  const at::Tensor all = at::empty({batch_shape.tokens(), here.size(1)}, here.options());
  if (use && call.options.overlap) {
    ring_gather(*tp, all, here, what, use);
    return all;
  }
  tp->all_gather(all, here.contiguous(), {comm::Purpose::activation, what}, element_counts(batch_shape.tokens(), here.size(1), tp->size()))
      .wait();
  if (use) use(all, 0, all.size(0));
  return all;
}

at::Tensor reduce_scatter_tokens(const at::Tensor& terms, const Call& call, std::string_view what, const OnRows& make, TokenLayout tokens) {
  if (layout_in(call, tokens) == TokenLayout::replicated) {
    if (make) make(terms, 0, terms.size(0));
    all_reduce_tp(terms, call, what).wait();
    return terms;
  }
  comm::Group* tp = call.axes.find("tp");
  if (make && tp && call.options.overlap) return direct_reduce(*tp, terms, what, make);
  if (make) make(terms, 0, terms.size(0));
  if (!tp) return terms;
  const int64_t mine = mesh::even_part(terms.size(0), tp->size(), tp->rank()).length();
  const at::Tensor here = at::empty({mine, terms.size(1)}, terms.options());
  tp->reduce_scatter(here, terms, comm::Reduce::sum, {comm::Purpose::activation, what},
                     element_counts(terms.size(0), terms.size(1), tp->size()))
      .wait();
  return here;
}

at::Tensor local_tokens(const at::Tensor& whole, const Call& call) {
  comm::Group* tp = call.cache ? nullptr : call.axes.find("tp");
  if (!tp) return whole;
  const mesh::Interval mine = mesh::even_part(whole.size(0), tp->size(), tp->rank());
  return whole.narrow(0, mine.begin, mine.length());
}

at::Tensor as_stream(const at::Tensor& rows, const BatchShape& batch_shape, const Call& call, TokenLayout tokens) {
  return layout_in(call, tokens) == TokenLayout::sharded && call.axes.find("tp")
             ? rows.unsqueeze(0)
             : rows.view({batch_shape.batch, batch_shape.length, rows.size(-1)});
}

void apply_dropout(const at::Tensor& here, double rate, const Call& call, std::string_view where, TokenLayout tokens) {
  if (rate == 0 || !call.trains()) return;
  CAIRN_CHECK(call.token_keys, "{}: dropout needs token keys", where);
  const at::Tensor keys = call.token_keys->view({-1, 1});
  kernels::dropout(here, (layout_in(call, tokens) == TokenLayout::replicated ? keys : local_tokens(keys, call)).reshape({-1}),
                   call.random.for_purpose("dropout").for_name(where), rate);
}

comm::Work all_reduce_tp(const at::Tensor& x, const Call& call, std::string_view what) {
  comm::Group* tp = call.axes.find("tp");
  if (!tp) return comm::Work::done();
  comm::Work sum = tp->all_reduce(x, comm::Reduce::sum, {comm::Purpose::activation, what});
  tp->progress();
  return sum;
}

void local_weight_gradient(const Norm& norm, mesh::Gradients& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics,
                           const Call& call) {
  const bool by_row = statistics.dim() == 1;  // else [2, ..., 1]
  const at::Tensor own = by_row ? local_tokens(statistics.unsqueeze(1), call).flatten()
                                : local_tokens(statistics.flatten(1).t(), call).t().unsqueeze(2).contiguous();
  norm.weight_gradient(into, local_tokens(rows(dy), call), local_tokens(rows(x), call), own, call);
}

mesh::Interval local_rows(mesh::ParamId table, int64_t size, const Call& call) {
  const mesh::Placement::How how = call.weights.placement(table).on("tp");
  const auto* split = std::get_if<mesh::Split>(&how);
  comm::Group* tp = call.axes.find("tp");
  if (!split || !tp) return {0, size};
  if (split->pieces.empty()) return mesh::even_part(size, tp->size(), tp->rank());
  const std::vector<mesh::Interval>& mine = split->pieces[static_cast<size_t>(tp->rank())];
  return mine.empty() ? mesh::Interval{0, 0} : mine.front();
}

}  // namespace cairn::model
