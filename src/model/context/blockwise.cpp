// Blockwise attention: exact attention over keys that arrive in blocks, on top of the kernels. Forward merges the partial results of
// disjoint keys: lse = log(e^a + e^b), out = e^(a - lse) out_a + e^(b - lse) out_b. Backward needs the merged out and lse only; the
// gradients of disjoint keys add up.
#include "model/context/blockwise.h"

#include <limits>
#include <utility>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/low_precision.h"

namespace cairn::model {
namespace {

constexpr double kNothingSeen = -std::numeric_limits<double>::infinity();

at::Tensor keys_in(const at::Tensor& both) { return both.select(2, 0).transpose(0, 1); }    // views, [batch, positions, kv_heads,
at::Tensor values_in(const at::Tensor& both) { return both.select(2, 1).transpose(0, 1); }  // head_dim]

// One kernel call: a segment of queries and the keys of one segment that they may see.
struct SeenPair {
  Segment queries;
  mesh::Interval keys;  // positions
  int64_t key_row = 0;  // of the first one, in the block
  at::Tensor query_documents, key_documents;

  at::Tensor of_queries(const at::Tensor& x) const { return x.narrow(1, queries.row, queries.positions.length()); }
  at::Tensor of_keys(const at::Tensor& both) const { return both.narrow(0, key_row, keys.length()); }

  // Multiply-adds of one product of queries and keys; forward has two products, backward five.
  double work(const ContextQueries& all, const at::Tensor& q) const {
    return static_cast<double>(seen_pairs(all.options, queries.positions, keys) * q.size(0) * q.size(2) * q.size(3));
  }

  kernels::AttentionOptions options(const ContextQueries& all) const {
    kernels::AttentionOptions o{.scale = all.options.scale, .causal = all.options.causal, .window = all.options.window};
    o.query_offset = queries.positions.begin, o.key_offset = keys.begin;
    if (query_documents.defined()) o.query_documents = &query_documents, o.key_documents = &key_documents;
    return o;
  }
};

// The pairs of one segment of queries with a block.
std::vector<SeenPair> seen_pairs(const ContextQueries& all, const Segment& queries, const KeyBlock& block) {
  std::vector<SeenPair> pairs;
  const mesh::Interval seen = seen_keys(all.options, queries.positions, all.length);
  for (const Segment& segment : block.segments) {
    const mesh::Interval keys = overlap(seen, segment.positions);
    if (keys.length() <= 0) continue;
    SeenPair pair{queries, keys, segment.row + keys.begin - segment.positions.begin, {}, {}};
    if (all.documents.defined()) {
      pair.query_documents = pair.of_queries(all.documents);
      pair.key_documents = pair.of_keys(block.documents).transpose(0, 1);
    }
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

// The one that these positions lie in.
size_t segment_of(const std::vector<Segment>& segments, mesh::Interval positions) {
  for (size_t i = 0; i < segments.size(); ++i)
    if (segments[i].positions.begin <= positions.begin && positions.end <= segments[i].positions.end) return i;
  CAIRN_CHECK(false, "queries [{}:{}] lie in no segment of this rank", positions.begin, positions.end);
  return 0;
}

}  // namespace

void pack_keys(const at::Tensor& both, const at::Tensor& k, const at::Tensor& v) {
  keys_in(both).copy_(k);
  values_in(both).copy_(v);
}

void unpack_keys(const at::Tensor& both, const at::Tensor& k, const at::Tensor& v) {
  k.copy_(keys_in(both));
  v.copy_(values_in(both));
}

ContextForward::ContextForward(const at::Tensor& q, ContextQueries queries)
    : q_(kernels::widened(q)),
      queries_(std::move(queries)),
      partials_(queries_.segments.size()),
      skip_merge_(queries_.mistakes.skip_merge) {}

void ContextForward::add(const KeyBlock& block, const AfterKernel& between) {
  const at::Tensor both = kernels::widened(block.both);
  for (size_t i = 0; i < partials_.size(); ++i)
    for (const SeenPair& pair : seen_pairs(queries_, queries_.segments[i], block)) {
      const at::Tensor q = pair.of_queries(q_), part = pair.of_keys(both);
      const Partial result{at::empty(q.sizes(), q.options()), at::empty({q.size(0), q.size(2), q.size(1)}, q.options())};
      kernels::attention(result.out, result.lse, q, keys_in(part), values_in(part), pair.options(queries_));
      merge(partials_[i], pair.queries, 0, result);
      between(4 * pair.work(queries_, q));
    }
}

void ContextForward::add_partial(mesh::Interval positions, const at::Tensor& out, const at::Tensor& lse) {
  const size_t i = segment_of(queries_.segments, positions);
  const Segment& queries = queries_.segments[i];
  merge(partials_[i], queries, positions.begin - queries.positions.begin, {kernels::widened(out), lse});
}

// Over disjoint keys: lse = log(exp(a) + exp(b)), out = exp(a - lse) out_a + exp(b - lse) out_b. The part begins at row `begin` of the
// segment.
void ContextForward::merge(Partial& sum, const Segment& queries, int64_t begin, const Partial& part) {
  const int64_t count = part.out.size(1), all = queries.positions.length();
  if (!sum.out.defined()) {
    if (count == all) {
      sum = {part.out.contiguous(), part.lse.contiguous()};
      return;
    }
    sum.out = at::zeros({part.out.size(0), all, part.out.size(2), part.out.size(3)}, part.out.options());
    sum.lse = at::full({part.lse.size(0), part.lse.size(1), all}, kNothingSeen, part.lse.options());
  }
  if (std::exchange(skip_merge_, false)) return;
  const at::Tensor into = sum.out.narrow(1, begin, count), lse_into = sum.lse.narrow(2, begin, count);
  const at::Tensor lse = at::logaddexp(lse_into, part.lse);
  const at::Tensor finite = lse.masked_fill(lse == kNothingSeen, 0);  // both -inf: weights 0 instead of nan
  const auto weight = [&](const at::Tensor& one) { return at::exp(one - finite).transpose(1, 2).unsqueeze(3); };
  into.mul_(weight(lse_into)).addcmul_(part.out, weight(part.lse));
  lse_into.copy_(lse);
}

void ContextForward::finish(const at::Tensor& out, const at::Tensor& lse) const {
  for (size_t i = 0; i < partials_.size(); ++i) {
    const Segment& queries = queries_.segments[i];
    const at::Tensor to = out.narrow(1, queries.row, queries.positions.length());
    const at::Tensor lse_to = lse.narrow(2, queries.row, queries.positions.length());
    if (partials_[i].out.defined()) {
      to.copy_(partials_[i].out);
      lse_to.copy_(partials_[i].lse);
    } else {
      to.zero_();
      lse_to.fill_(kNothingSeen);
    }
  }
}

ContextBackward::ContextBackward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& out, const at::Tensor& lse,
                                 ContextQueries queries)
    : dout_(kernels::widened(dout)),
      q_(kernels::widened(q)),
      out_(kernels::widened(out)),
      lse_(lse),
      dq_(at::zeros(q.sizes(), q_.options())),
      queries_(std::move(queries)) {}

at::Tensor ContextBackward::add(const KeyBlock& block, const AfterKernel& between) {
  const at::Tensor both = kernels::widened(block.both), sum = at::zeros(both.sizes(), both.options());
  for (const Segment& queries : queries_.segments) {
    const at::Tensor lse = lse_.narrow(2, queries.row, queries.positions.length()).contiguous();
    for (const SeenPair& pair : seen_pairs(queries_, queries, block)) {
      const at::Tensor q = pair.of_queries(q_), keys = pair.of_keys(both);
      const at::Tensor dq = at::empty(q.sizes(), q.options()), dkeys = at::empty(keys.sizes(), keys.options());
      kernels::attention_backward(dq, keys_in(dkeys), values_in(dkeys), pair.of_queries(dout_), q, keys_in(keys), values_in(keys),
                                  pair.of_queries(out_), lse, pair.options(queries_));
      pair.of_queries(dq_).add_(dq);
      pair.of_keys(sum).add_(dkeys);
      between(10 * pair.work(queries_, q));
    }
  }
  return sum;
}

void ContextBackward::add_partial(mesh::Interval positions, const at::Tensor& dq) {
  const Segment& queries = queries_.segments[segment_of(queries_.segments, positions)];
  dq_.narrow(1, queries.row + positions.begin - queries.positions.begin, positions.length()).add_(dq);
}

void ContextBackward::finish(const at::Tensor& dq) const { dq.copy_(dq_); }

at::Tensor row_sums(const at::Tensor& dout, const at::Tensor& out) { return (kernels::widened(dout) * kernels::widened(out)).sum(-1); }

// w = dout / max|dout| keeps the squares from underflow: then dout . (w delta / (max|dout| w . w)) = delta.
at::Tensor stand_in_for_out(const at::Tensor& dout, const at::Tensor& row_sums) {
  const at::Tensor wide = kernels::widened(dout), largest = wide.abs().amax(-1, /*keepdim=*/true);
  const at::Tensor some = largest == 0;  // such a row has delta 0
  const at::Tensor w = wide / largest.masked_fill(some, 1);
  const at::Tensor squares = w.square().sum(-1, /*keepdim=*/true).masked_fill(some, 1);
  return w * (row_sums.unsqueeze(-1) / largest.masked_fill(some, 1) / squares);
}

}  // namespace cairn::model
