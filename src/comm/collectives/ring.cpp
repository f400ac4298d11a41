// Ring all-reduce and all-gather (Patarasuk and Yuan 2009; the algorithm of NCCL and Horovod).
//
// The buffer x of S bytes is cut into n parts; rank r owns part r. In hop h = 0 .. n-2 of the reduce-scatter, rank r
//   sends     part (r - 1 - h) mod n  to rank r + 1
//   receives  part (r - 2 - h) mod n  from rank r - 1  and reduces:  x[part] = received op x[part]
// After n - 1 hops rank r holds its own part, reduced in the order r + 1, r + 2, ..., r. The all-gather then sends the finished parts round
// once more. Each rank sends 2(n-1)/n S bytes in 2(n-1) messages, which is the least possible, and no link carries more than another.
//
// Parts are cut into pieces, and several pieces are in flight, so that transfer and reduction overlap.
#include "comm/collectives/ring.h"

#include <array>

namespace cairn::comm {

Ring::Ring(Exchange& exchange, const Span& x, const std::vector<int64_t>& counts, Reduce reduce)
    : exchange_(exchange), parts_(x, counts, exchange.chunking().bytes), reduce_(reduce), n_(exchange.size()), me_(exchange.rank()) {}

void Ring::pass_on(int part, int64_t piece, int hop, std::vector<Completion>& sent) {
  if (!parts_.moves(part, piece)) return;
  sent.push_back(exchange_.send(wrap(me_ + 1), step(piece, hop), parts_.place(part, piece), parts_.bytes(part, piece)));
}

Coroutine Ring::reduce_scatter(int64_t piece) {
  std::vector<Completion> sent;
  for (int hop = 0; hop < n_ - 1; ++hop) {
    const int part = wrap(me_ - 2 - hop);
    Completion theirs;
    if (parts_.moves(part, piece)) theirs = exchange_.recv_view(wrap(me_ - 1), step(piece, hop), parts_.bytes(part, piece));
    pass_on(wrap(me_ - 1 - hop), piece, hop, sent);
    co_await theirs;
    const Span own = parts_.span(part, piece);
    if (own.count == 0) continue;
    const std::array<const void*, 2> sources{theirs.view(), own.data};
    combine(reduce_, own.dtype, own.data, sources, own.count);
  }
  for (Completion& gone : sent) co_await gone;
}

Coroutine Ring::all_gather(int64_t piece) {
  std::vector<Completion> coming, sent;
  for (int hop = 0; hop < n_ - 1; ++hop) {
    const int part = wrap(me_ - 1 - hop);
    coming.emplace_back();
    if (!parts_.moves(part, piece)) continue;
    coming.back() = exchange_.recv(wrap(me_ - 1), step(piece, n_ - 1 + hop), parts_.place(part, piece), parts_.bytes(part, piece));
  }
  for (int hop = 0; hop < n_ - 1; ++hop) {
    pass_on(wrap(me_ - hop), piece, n_ - 1 + hop, sent);
    Completion& here = coming[hop];
    co_await here;
  }
  for (Completion& gone : sent) co_await gone;
}

Coroutine all_reduce_ring(Exchange& exchange, const Arguments& arguments) {
  Ring ring(exchange, arguments.out, arguments.counts, arguments.reduce);
  const auto piece = [](Ring& on, int64_t k) -> Coroutine {
    Coroutine first = on.reduce_scatter(k);
    co_await first;
    Coroutine second = on.all_gather(k);
    co_await second;
  };
  Coroutine all = run_pipelined(ring.pieces(), exchange.chunking().in_flight, [&](int64_t k) { return piece(ring, k); });
  co_await all;
}

Coroutine all_gather_ring(Exchange& exchange, const Arguments& arguments) {
  Ring ring(exchange, arguments.out, arguments.counts, Reduce::sum);
  const int64_t begin = starts(arguments.counts)[exchange.rank()];
  copy_bytes(at_element(arguments.out, begin), arguments.in.data, arguments.in.count * size_of(arguments.in.dtype));
  Coroutine all = run_pipelined(ring.pieces(), exchange.chunking().in_flight, [&](int64_t k) { return ring.all_gather(k); });
  co_await all;
}

}  // namespace cairn::comm
