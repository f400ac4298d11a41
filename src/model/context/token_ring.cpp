// TokenRing: keys and values stay where they are, and queries travel.
//
// With n ranks there are n steps. At step s a rank holds the queries of the coordinate s ahead of it: queries go from coordinate to
// coordinate downwards, since under a causal mask the earlier ranks are those that later queries see. The partial output of a step (with
// its log-sum-exp) goes straight back to the owner of the queries, upwards, the moment that it is computed: it waits for no other message.
// So queries and outputs use opposite directions of the links, and where every pair of ranks has a link of its own, a step costs one
// message in the place of the two (keys and values) of ring attention.
//
//   s = 0       own queries on own keys
//   s = 1..n-1  pass the queries on | attend | send the part to its owner | merge what has arrived for one's own queries
//
// The half rule: in the zigzag split the front chunk of coordinate o sees no key of coordinates above o. A message carries only queries
// that some rank from there on needs (QueryRoute), and an output only those that saw a key, so both are halves once the route has wrapped.
// The same rule cuts messages for contiguous splits and for windows. All ranks compute the sizes from the split.
//
// Backward: (q, dout, lse, delta = rowsum(dout out)) take the same route; the gradients of keys and values stay at home, those of queries
// go straight back, in fp32. Sums are in fp32 for half precision.
#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "comm/group.h"
#include "kernels/aten.h"
#include "kernels/low_precision.h"
#include "model/context/forms.h"

namespace cairn::model {
namespace {

using mesh::Interval;

constexpr comm::Label kQueriesLabel{comm::Purpose::activation, "queries"};
constexpr comm::Label kOutputLabel{comm::Purpose::activation, "partial outputs"};
constexpr comm::Label kQueryGradientLabel{comm::Purpose::activation, "gradients of queries"};

int64_t bytes_of(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

constexpr size_t kArrivingMax = 3;  // parts on their way to this rank, before it waits for the oldest

// A message of several tensors behind each other in one buffer; the widest elements first, so that all are aligned.
class Message {
 public:
  Message(int64_t bytes, const at::TensorOptions& options) : buffer_(at::empty({bytes}, options.dtype(at::kByte))) {}
  at::Tensor next(at::IntArrayRef sizes, at::ScalarType dtype) {
    int64_t bytes = bytes_of(dtype);
    for (const int64_t size : sizes) bytes *= size;
    const at::Tensor part = buffer_.narrow(0, used_, bytes).view(dtype).view(sizes);
    used_ += bytes;
    return part;
  }
  const at::Tensor& buffer() const { return buffer_; }

 private:
  at::Tensor buffer_;
  int64_t used_ = 0;
};

// What travels with each query, in one of the two passes.
struct QueryShape {
  int64_t batch, tensors, statistics, heads, head_dim;  // tensors: q, or q and dout; statistics: none, or lse and delta
  at::ScalarType dtype, wide;
  bool documents;
};

// The queries of one coordinate on their way.
struct QueryBlock {
  at::Tensor message;
  at::Tensor documents;             // [rows, batch]
  at::Tensor statistics;            // [rows, batch, 2, heads]
  at::Tensor tensors;               // [rows, batch, tensors, heads, head_dim]
  std::vector<Interval> positions;  // by segment of the owner's queries

  QueryBlock(const QueryShape& shape, std::vector<Interval> which, const at::TensorOptions& options) : positions(std::move(which)) {
    const int64_t rows = rows_of(positions), heads = rows * shape.batch * shape.heads;
    Message room(rows * shape.batch * (shape.documents ? 8 : 0) + heads * shape.statistics * bytes_of(shape.wide) +
                     heads * shape.tensors * shape.head_dim * bytes_of(shape.dtype),
                 options);
    if (shape.documents) documents = room.next({rows, shape.batch}, at::kLong);
    if (shape.statistics > 0) statistics = room.next({rows, shape.batch, shape.statistics, shape.heads}, shape.wide);
    tensors = room.next({rows, shape.batch, shape.tensors, shape.heads, shape.head_dim}, shape.dtype);
    message = room.buffer();
  }

  at::Tensor tensor(int64_t i) const { return tensors.select(2, i).transpose(0, 1); }                        // [batch, rows, heads, dim]
  at::Tensor statistic(int64_t i) const { return statistics.select(2, i).permute({1, 2, 0}).contiguous(); }  // [batch, heads, rows]
};

// Copies the rows of these positions, out of more, into `to`.
void copy_rows(const at::Tensor& to, const std::vector<Interval>& which, const at::Tensor& from, const std::vector<Interval>& all) {
  if (!to.defined()) return;
  int64_t row = 0, base = 0;
  for (size_t i = 0; i < which.size(); ++i) {
    const int64_t count = which[i].length();
    if (count > 0) to.narrow(0, row, count).copy_(from.narrow(0, base + which[i].begin - all[i].begin, count));
    row += std::max<int64_t>(0, count), base += std::max<int64_t>(0, all[i].length());
  }
}

std::vector<Segment> as_segments(const std::vector<Interval>& positions) {
  std::vector<Segment> found;
  int64_t row = 0;
  for (const Interval& one : positions) {
    if (one.length() <= 0) continue;
    found.push_back({one, row});
    row += one.length();
  }
  return found;
}

// The ring of queries as this rank sees it.
class QueryRing {
 public:
  QueryRing(const ContextCall& call, const QueryShape& shape, const at::TensorOptions& options)
      : call_(call), shape_(shape), options_(options), routes_(query_routes(call.query_split, call.split, call.queries.options)) {}

  int me() const { return call_.group.rank(); }
  int steps() const { return call_.group.size(); }
  int above(int distance) const { return (me() + distance) % steps(); }
  int below(int distance) const { return (me() - distance % steps() + steps()) % steps(); }
  const QueryRoute& route(int owner) const { return routes_[static_cast<size_t>(owner)]; }
  const std::vector<Interval>& seeing(int owner, int distance) const { return route(owner).seeing[static_cast<size_t>(distance)]; }
  // What this rank has sent out: the positions of its queries that anyone needs.
  QueryBlock own_room() const { return QueryBlock(shape_, carried(me(), 1), options_); }

  // Passes the queries of this step on, as far as ranks below need them, and starts to receive those of the next step.
  void start(int step, const std::optional<QueryBlock>& current) {
    const int owner = above(step), next_owner = above(step + 1);
    if (step + 1 <= route(next_owner).last) {
      next_.emplace(shape_, carried(next_owner, step + 1), options_);
      arriving_ = call_.group.recv(next_->message, above(1), kQueriesLabel);
    }
    if (step + 1 > route(owner).last) return;
    leaving_.push_back(call_.group.send(select(*current, carried(owner, step + 1)).message, below(1), kQueriesLabel));
  }

  // The queries of the next step.
  std::optional<QueryBlock> finish() {
    std::exchange(arriving_, comm::Work::done()).wait();
    return std::exchange(next_, std::nullopt);
  }

  void finish_sends() { comm::Work::all(std::exchange(leaving_, {})).wait(); }

  // The block itself, or a copy of some of its rows.
  QueryBlock select(const QueryBlock& block, const std::vector<Interval>& which) const {
    if (which == block.positions) return block;
    QueryBlock part(shape_, which, options_);
    copy_rows(part.documents, which, block.documents, block.positions);
    copy_rows(part.statistics, which, block.statistics, block.positions);
    copy_rows(part.tensors, which, block.tensors, block.positions);
    return part;
  }

  ContextQueries queries_of(const QueryBlock& block) const {
    return {as_segments(block.positions), call_.split.length, call_.queries.options,
            shape_.documents ? block.documents.transpose(0, 1) : at::Tensor()};
  }

 private:
  const std::vector<Interval>& carried(int owner, int distance) const { return route(owner).carried[static_cast<size_t>(distance)]; }

  const ContextCall& call_;
  QueryShape shape_;
  at::TensorOptions options_;
  std::vector<QueryRoute> routes_;
  std::optional<QueryBlock> next_;
  comm::Work arriving_;
  std::vector<comm::Work> leaving_;
};

// Parts on their way to the owners of their queries. Each goes by itself, as soon as it is there.
class Returns {
 public:
  Returns(const QueryRing& ring, comm::Group& group, comm::Label label) : ring_(ring), group_(group), label_(label) {}

  // To the owner of the queries of this step.
  void send(int step, const at::Tensor& message) { leaving_.push_back(group_.send(message, ring_.above(step), label_)); }

  // Starts to receive what this step's distance gives for this rank's queries; `merge` is called once it is there.
  void expect(int step, const at::Tensor& message, std::function<void()> merge) {
    arriving_.push_back({group_.recv(message, ring_.below(step), label_), std::move(merge)});
  }

  // Merges what has arrived; waits for the oldest where more than `most` are on their way.
  void take(size_t most) {
    while (!arriving_.empty() && (arriving_.size() > most || arriving_.front().work.ready())) {
      arriving_.front().work.wait();
      arriving_.front().merge();
      arriving_.pop_front();
    }
  }

  void finish() {
    take(0);
    comm::Work::all(std::exchange(leaving_, {})).wait();
  }

 private:
  struct Arriving {
    comm::Work work;
    std::function<void()> merge;
  };
  const QueryRing& ring_;
  comm::Group& group_;
  comm::Label label_;
  std::deque<Arriving> arriving_;
  std::vector<comm::Work> leaving_;
};

// A partial output: lse [batch, heads, rows] and out [rows, batch, heads, head_dim].
struct PartialOutput {
  at::Tensor message, lse, out;

  PartialOutput(const QueryShape& shape, int64_t rows, const at::TensorOptions& options) {
    const int64_t heads = rows * shape.batch * shape.heads;
    Message room(heads * (bytes_of(shape.wide) + shape.head_dim * bytes_of(shape.dtype)), options);
    lse = room.next({shape.batch, shape.heads, rows}, shape.wide);
    out = room.next({rows, shape.batch, shape.heads, shape.head_dim}, shape.dtype);
    message = room.buffer();
  }
};

at::ScalarType wide_type(const at::Tensor& x) { return kernels::is_half_precision(x) ? at::kFloat : x.scalar_type(); }

// This rank's keys and values, in fp32 for half precision, so that they are widened once and not in every step.
KeyBlock own_keys(const ContextCall& call) {
  const at::Tensor& k = call.k;
  KeyBlock own{at::empty({k.size(1), k.size(0), 2, k.size(2), k.size(3)}, k.options().dtype(wide_type(k))),
               {},
               segments(call.split, call.group.rank())};
  pack_keys(own.both, k, call.v);
  if (call.queries.documents.defined()) own.documents = call.queries.documents.transpose(0, 1).contiguous();
  return own;
}

// Rows of all of this rank's queries, as one block of a route that begins here.
void copy_own(const at::Tensor& to, const QueryBlock& block, const at::Tensor& from, const ContextCall& call) {
  std::vector<Interval> all;
  for (const Segment& one : call.queries.segments) all.push_back(one.positions);
  copy_rows(to, block.positions, from, all);
}

}  // namespace

int64_t rows_of(const std::vector<Interval>& intervals) {
  int64_t rows = 0;
  for (const Interval& one : intervals) rows += std::max<int64_t>(0, one.length());
  return rows;
}

std::vector<QueryRoute> query_routes(const ContextSplit& asking, const ContextSplit& split, const kernels::AttentionOptions& options) {
  const int n = static_cast<int>(split.pieces.size());
  const auto hull = [](Interval a, Interval b) {
    if (a.length() <= 0) return b;
    if (b.length() <= 0) return a;
    return Interval{std::min(a.begin, b.begin), std::max(a.end, b.end)};
  };
  std::vector<QueryRoute> routes(split.pieces.size());
  for (int owner = 0; owner < n; ++owner) {
    const std::vector<Segment> queries = segments(asking, owner);
    QueryRoute& route = routes[static_cast<size_t>(owner)];
    route.seeing.assign(static_cast<size_t>(n), std::vector<Interval>(queries.size(), Interval{0, 0}));
    for (int distance = 1; distance < n; ++distance)
      for (const Segment& keys : segments(split, (owner - distance + n) % n))
        for (size_t i = 0; i < queries.size(); ++i) {
          Interval& seeing = route.seeing[static_cast<size_t>(distance)][i];
          const Interval more = overlap(queries[i].positions, seeing_queries(options, keys.positions, split.length));
          if (more.length() <= 0) continue;
          seeing = hull(seeing, more);
          route.last = distance;
        }
    route.carried = route.seeing;
    for (int distance = n - 2; distance >= 1; --distance)
      for (size_t i = 0; i < queries.size(); ++i) {
        Interval& here = route.carried[static_cast<size_t>(distance)][i];
        here = hull(here, route.carried[static_cast<size_t>(distance) + 1][i]);
      }
  }
  return routes;
}

void token_ring_forward(ContextForward& forward, const ContextCall& call, const at::Tensor& q) {
  const QueryShape shape{q.size(0), 1, 0, q.size(2), q.size(3), q.scalar_type(), wide_type(q), call.queries.documents.defined()};
  QueryRing ring(call, shape, q.options());
  Returns outputs(ring, call.group, kOutputLabel);
  const KeyBlock keys = own_keys(call);
  const auto progress = [&](double flops) { call.progress(flops); };
  std::optional<QueryBlock> current;
  if (ring.steps() > 1) {
    current = ring.own_room();
    if (shape.documents) copy_own(current->documents, *current, keys.documents, call);
    copy_own(current->tensors.select(2, 0), *current, q.transpose(0, 1), call);
  }
  for (int step = 0; step < ring.steps(); ++step) {
    ring.start(step, current);
    if (step == 0) forward.add(keys, progress);
    if (step > 0) {
      if (const std::vector<Interval>& mine = ring.seeing(ring.me(), step); rows_of(mine) > 0) {
        const PartialOutput part(shape, rows_of(mine), q.options());
        outputs.expect(step, part.message, [&forward, mine, part] {
          for (const auto& [positions, row] : as_segments(mine))
            forward.add_partial(positions, part.out.narrow(0, row, positions.length()).transpose(0, 1),
                                part.lse.narrow(2, row, positions.length()));
        });
      }
      if (const std::vector<Interval>& theirs = ring.seeing(ring.above(step), step); current && rows_of(theirs) > 0) {
        const QueryBlock queries = ring.select(*current, theirs);
        ContextForward visiting(queries.tensor(0), ring.queries_of(queries));
        visiting.add(keys, progress);
        const PartialOutput part(shape, rows_of(theirs), q.options());
        visiting.finish(part.out.transpose(0, 1), part.lse);
        outputs.send(step, part.message);
      }
    }
    outputs.take(kArrivingMax);
    current = ring.finish();
  }
  outputs.finish();
  ring.finish_sends();
}

at::Tensor token_ring_backward(ContextBackward& backward, const ContextCall& call, const ContextGradientInputs& inputs) {
  const at::Tensor& q = inputs.q;
  const QueryShape shape{q.size(0), 2, 2, q.size(2), q.size(3), q.scalar_type(), wide_type(q), call.queries.documents.defined()};
  QueryRing ring(call, shape, q.options());
  Returns gradients(ring, call.group, kQueryGradientLabel);
  const KeyBlock keys = own_keys(call);
  const auto progress = [&](double flops) { call.progress(flops); };
  std::optional<QueryBlock> current;
  if (ring.steps() > 1) {
    current = ring.own_room();
    if (shape.documents) copy_own(current->documents, *current, keys.documents, call);
    copy_own(current->tensors.select(2, 0), *current, q.transpose(0, 1), call);
    copy_own(current->tensors.select(2, 1), *current, inputs.dout.transpose(0, 1), call);
    copy_own(current->statistics.select(2, 0), *current, inputs.lse.permute({2, 0, 1}), call);
    copy_own(current->statistics.select(2, 1), *current, row_sums(inputs.dout, inputs.out).transpose(0, 1), call);
  }
  at::Tensor sum;
  for (int step = 0; step < ring.steps(); ++step) {
    ring.start(step, current);
    if (step == 0) sum = backward.add(keys, progress);
    if (step > 0) {
      if (const std::vector<Interval>& mine = ring.seeing(ring.me(), step); rows_of(mine) > 0) {
        const at::Tensor part = at::empty({rows_of(mine), shape.batch, shape.heads, shape.head_dim}, q.options().dtype(shape.wide));
        gradients.expect(step, part, [&backward, mine, part] {
          for (const auto& [positions, row] : as_segments(mine))
            backward.add_partial(positions, part.narrow(0, row, positions.length()).transpose(0, 1));
        });
      }
      if (const std::vector<Interval>& theirs = ring.seeing(ring.above(step), step); current && rows_of(theirs) > 0) {
        const QueryBlock queries = ring.select(*current, theirs);
        const at::Tensor dout = queries.tensor(1), delta = queries.statistics.select(2, 1).transpose(0, 1);
        ContextBackward visiting(dout, queries.tensor(0), stand_in_for_out(dout, delta), queries.statistic(0), ring.queries_of(queries));
        sum.add_(visiting.add(keys, progress));
        const at::Tensor part = at::empty({rows_of(theirs), shape.batch, shape.heads, shape.head_dim}, q.options().dtype(shape.wide));
        visiting.finish(part.transpose(0, 1));
        gradients.send(step, part);
      }
    }
    gradients.take(kArrivingMax);
    current = ring.finish();
  }
  gradients.finish();
  ring.finish_sends();
  return sum;
}

}  // namespace cairn::model
