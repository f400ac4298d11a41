// The part of Group without tensors: checks the arguments, describes the operation by a signature, starts it.
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "comm/affine_map.h"
#include "comm/codec.h"
#include "comm/group.h"
#include "comm/operation.h"

namespace cairn::comm {
namespace {

int64_t sum(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// The counts as given, or even ones for `whole` elements; checked against the sizes of the two buffers.
std::vector<int64_t> checked_counts(std::vector<int64_t> counts, int64_t whole, const Group::State& group, int64_t own, const char* what) {
  const int n = static_cast<int>(group.ranks.size());
  if (counts.empty()) counts = even_counts(whole, n);
  CAIRN_CHECK(static_cast<int>(counts.size()) == n, "{}: {} counts for {} ranks", what, counts.size(), n);
  CAIRN_CHECK(std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count >= 0; }), "{}: a negative count", what);
  CAIRN_CHECK(sum(counts) == whole, "{}: the counts add up to {}, the buffer has {} elements", what, sum(counts), whole);
  CAIRN_CHECK(counts[group.me] == own, "{}: rank {} has a buffer of {} elements for its {}", what, group.me, own, counts[group.me]);
  return counts;
}

void check_member(const Group::State& group, int rank, const char* what) {
  CAIRN_CHECK(rank >= 0 && rank < static_cast<int>(group.ranks.size()), "{}: no rank {} in a group of {}", what, rank, group.ranks.size());
}

}  // namespace

std::vector<int64_t> even_counts(int64_t count, int n) {
  std::vector<int64_t> counts(static_cast<size_t>(n), count / n);
  for (int64_t i = 0; i < count % n; ++i) counts[i] += 1;
  return counts;
}

Group::Group(std::unique_ptr<State> state) : state_(std::move(state)) {}

Group::~Group() { state_->fail_all(Error(Error::Kind::cancelled, "the world of this operation is gone")); }

int Group::rank() const { return state_->me; }
int Group::size() const { return static_cast<int>(state_->ranks.size()); }
const std::vector<int>& Group::ranks() const { return state_->ranks; }
World& Group::world() const { return state_->world; }
std::chrono::nanoseconds Group::deadline() const { return state_->deadline; }
void Group::set_deadline(std::chrono::nanoseconds deadline) { state_->deadline = deadline; }

Work Group::all_reduce(Span x, Reduce reduce, Label label) {
  const Signature signature{OperationKind::all_reduce, x.dtype, reduce, -1, x.count};
  return state_->start(signature, label, {.out = x, .in = x, .reduce = reduce, .counts = even_counts(x.count, size())}, &comm::all_reduce);
}

Work Group::coded_all_reduce(Span x, const Codec& codec, Label label) {
  CAIRN_CHECK(x.dtype == Dtype::f32, "coded_all_reduce of {}: only f32 can be coded", name(x.dtype));
  Signature signature{OperationKind::coded_all_reduce, x.dtype, Reduce::sum, -1, x.count};
  signature.codec = codec_number(codec.name());
  return state_->start(signature, label, {.out = x, .in = x, .codec = make_codec(codec.name())}, &comm::coded_all_reduce);
}

Work Group::reduce(Span x, int root, Reduce reduce, Label label) {
  check_member(*state_, root, "reduce");
  const Signature signature{OperationKind::reduce, x.dtype, reduce, root, x.count};
  return state_->start(signature, label, {.out = x, .in = x, .reduce = reduce, .root = root, .counts = even_counts(x.count, size())},
                       &comm::reduce);
}

Work Group::broadcast(Span x, int root, Label label) {
  check_member(*state_, root, "broadcast");
  const Signature signature{OperationKind::broadcast, x.dtype, Reduce::sum, root, x.count};
  return state_->start(signature, label, {.out = x, .in = x, .root = root}, &comm::broadcast);
}

Work Group::all_gather(Span out, Span in, Label label, std::vector<int64_t> counts) {
  CAIRN_CHECK(out.dtype == in.dtype, "all_gather of {} into {}", name(in.dtype), name(out.dtype));
  counts = checked_counts(std::move(counts), out.count, *state_, in.count, "all_gather");
  const Signature signature{OperationKind::all_gather, in.dtype, Reduce::sum, -1, out.count};
  return state_->start(signature, label, {.out = out, .in = in, .counts = std::move(counts)}, &comm::all_gather);
}

Work Group::reduce_scatter(Span out, Span in, Reduce reduce, Label label, std::vector<int64_t> counts) {
  CAIRN_CHECK(out.dtype == in.dtype, "reduce_scatter of {} into {}", name(in.dtype), name(out.dtype));
  counts = checked_counts(std::move(counts), in.count, *state_, out.count, "reduce_scatter");
  const Signature signature{OperationKind::reduce_scatter, in.dtype, reduce, -1, in.count};
  return state_->start(signature, label, {.out = out, .in = in, .reduce = reduce, .counts = std::move(counts)}, &comm::reduce_scatter);
}

Work Group::gather(Span out, Span in, int root, Label label, std::vector<int64_t> counts) {
  check_member(*state_, root, "gather");
  if (counts.empty()) counts.assign(state_->ranks.size(), in.count);
  const int64_t whole = sum(counts);
  counts = checked_counts(std::move(counts), rank() == root ? out.count : whole, *state_, in.count, "gather");
  const Signature signature{OperationKind::gather, in.dtype, Reduce::sum, root, whole};
  return state_->start(signature, label, {.out = out, .in = in, .root = root, .counts = std::move(counts)}, &comm::gather);
}

Work Group::scatter(Span out, Span in, int root, Label label, std::vector<int64_t> counts) {
  check_member(*state_, root, "scatter");
  if (counts.empty()) counts.assign(state_->ranks.size(), out.count);
  const int64_t whole = sum(counts);
  counts = checked_counts(std::move(counts), rank() == root ? in.count : whole, *state_, out.count, "scatter");
  const Signature signature{OperationKind::scatter, out.dtype, Reduce::sum, root, whole};
  return state_->start(signature, label, {.out = out, .in = in, .root = root, .counts = std::move(counts)}, &comm::scatter);
}

Work Group::all_to_all(Span out, Span in, Label label, std::vector<int64_t> out_counts, std::vector<int64_t> in_counts) {
  CAIRN_CHECK(out.dtype == in.dtype, "all_to_all of {} into {}", name(in.dtype), name(out.dtype));
  const bool even = out_counts.empty() && in_counts.empty();
  if (even) {
    CAIRN_CHECK(in.count % size() == 0 && in.count == out.count, "all_to_all of {} elements into {} among {} ranks: give the counts",
                in.count, out.count, size());
    out_counts = in_counts = even_counts(in.count, size());
  }
  const int64_t to_self = static_cast<int>(in_counts.size()) == size() ? in_counts[rank()] : -1;
  out_counts = checked_counts(std::move(out_counts), out.count, *state_, to_self, "all_to_all, out");
  in_counts = checked_counts(std::move(in_counts), in.count, *state_, to_self, "all_to_all, in");
  // Uneven counts differ from rank to rank: the length of each message is checked instead.
  const Signature signature{OperationKind::all_to_all, in.dtype, Reduce::sum, -1, even ? in.count : -1};
  return state_->start(signature, label, {.out = out, .in = in, .counts = std::move(out_counts), .in_counts = std::move(in_counts)},
                       &comm::all_to_all);
}

Work Group::all_scan(Span before, Span state, std::shared_ptr<const AffineMap> map, ScanOptions options, Label label) {
  const bool narrow = before.dtype == Dtype::bf16 && state.dtype == Dtype::f32;
  CAIRN_CHECK((before.dtype == state.dtype || narrow) && before.count == state.count && map->dtype() == state.dtype &&
                  map->count() == state.count,
              "all_scan of {} {} into {} {} by a map of {} {}", state.count, name(state.dtype), before.count, name(before.dtype),
              map->count(), name(map->dtype()));
  const int first = options.backward ? size() - 1 : 0;
  const Signature signature{OperationKind::all_scan, before.dtype, Reduce::sum, first, state.count};
  return state_->start(signature, label, {.out = before, .in = state, .root = first, .map = std::move(map), .blocks = options.blocks},
                       &comm::all_scan);
}

Work Group::send(Span x, int peer, Label label) {
  check_member(*state_, peer, "send");
  CAIRN_CHECK(peer != rank(), "send from rank {} to itself", peer);
  const Signature signature{OperationKind::send_recv, x.dtype, Reduce::sum, -1, x.count};
  return state_->start(signature, label, {.out = x, .in = x, .root = peer}, &send_one);
}

Work Group::recv(Span x, int peer, Label label) {
  check_member(*state_, peer, "recv");
  CAIRN_CHECK(peer != rank(), "recv at rank {} from itself", peer);
  const Signature signature{OperationKind::send_recv, x.dtype, Reduce::sum, -1, x.count};
  return state_->start(signature, label, {.out = x, .in = x, .root = peer}, &recv_one);
}

Work Group::barrier(std::string_view what) {
  return state_->start({.kind = OperationKind::barrier}, {Purpose::barrier, what}, {}, &comm::barrier);
}

void Group::progress() {
  state_->transport.poll();
  state_->settle();
}

std::shared_ptr<void> Group::allocate(int64_t bytes) { return state_->transport.allocate(bytes); }

std::vector<OperationRecord> Group::history() const {
  std::vector<OperationRecord> records;
  for (const State::Past& one : state_->past) {
    records.push_back({one.sequence, describe(one.signature, one.what), one.purpose, one.begun, one.ended, one.failed});
  }
  return records;
}

}  // namespace cairn::comm
