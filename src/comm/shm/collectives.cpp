// Collectives in shared memory (group.h has the protocol of slots and phases). n ranks, x of S bytes, part r = the elements that rank r
// owns.
//
//   all_reduce      reduce-scatter, then all-gather:  part_r = x_0[r] + x_1[r] + ... + x_{n-1}[r]  on rank r, in rank order;
//                   then every rank reads part_i from rank i.            reads (n-1)/n S twice
//   reduce_scatter  the first half.   all_gather  the second half.   all_to_all  every rank reads its part of every other one.
//
// Two ways to go through long buffers:
//   in place  all regions lie in arenas: everything is published in phase 1 and no rank waits for chunks. Rank r reduces chunk k, enters
//             phase k + 2, and reads results only when its own part is done: data leaves the writer's cache before others read it.
//   staged    a region lies in private memory: its rank copies chunk k into one of two buffers (double buffering). All ranks publish
//             chunk k before anybody reads it, and have read chunk k before chunk k + 2 overwrites it.
#include "comm/collectives/collectives.h"

#include <algorithm>
#include <array>

#include "comm/collectives/layout.h"
#include "comm/shm/group.h"
#include "comm/shm/stream_copy.h"

namespace cairn::comm {
namespace {

constexpr int64_t kLongChunk = 4 << 20;   // in place
constexpr int64_t kWholeBytes = 8 << 10;  // up to here two ranks read all of each other: as many bytes, one wait less
constexpr int64_t kLongPart = 4 << 20;    // a result this long does not fit the caches

// The chunk length of a staged part. Long, because data that another core has just written is slow to read; all parts are double-buffered.
int64_t chunk_of(int ranks) {
  constexpr int64_t kAll = 2 << 20, kPage = 4096;
  return kAll / ranks / kPage * kPage;
}

// How parts are cut into chunks; the same on all ranks.
struct Chunks {
  Chunks(int64_t longest_part, int64_t chunk) : size(chunk), count(std::max<int64_t>(1, (longest_part + chunk - 1) / chunk)) {}
  int64_t bytes(int64_t part, int64_t k) const { return std::clamp<int64_t>(part - k * size, 0, size); }
  int64_t size, count;
};

// After phase 1: if nobody stages, switches to longer chunks, which are read faster. Returns whether it did.
bool cut_longer(ShmCollective& shm, Chunks& chunks, int64_t longest_part) {
  if (!shm.all_published()) return false;
  chunks = Chunks(longest_part, kLongChunk);
  shm.set_chunk(kLongChunk);
  return true;
}

// Offsets and lengths of all parts. Allocates nothing: short operations take microseconds.
struct Sizes {
  Sizes(const std::vector<int64_t>& counts, Dtype dtype) : ranks(counts.size()) {
    int64_t at = 0;
    for (size_t i = 0; i < ranks; ++i) {
      begin[i] = at;
      at += bytes[i] = counts[i] * size_of(dtype);
    }
  }
  int64_t longest() const { return *std::max_element(bytes.begin(), bytes.begin() + static_cast<int64_t>(ranks)); }
  size_t ranks;
  std::array<int64_t, kShmRanksMax> begin = {}, bytes = {};
};

struct PartsOf {
  PartsOf(const void* data, const Sizes& sizes) : count(sizes.ranks) {
    for (size_t i = 0; i < count; ++i) parts[i] = {static_cast<const std::byte*>(data) + sizes.begin[i], sizes.bytes[i]};
  }
  std::span<const ShmCollective::Part> all() const { return std::span(parts).first(count); }
  size_t count;
  std::array<ShmCollective::Part, kShmRanksMax> parts;
};

// Reduces chunk k of this rank's part over all ranks, in rank order.
void reduce_chunk(const ShmCollective& shm, const Exchange& exchange, const Arguments& arguments, const Chunks& chunks, const void* own,
                  int64_t bytes, int64_t k, void* into) {
  const int n = exchange.size(), me = exchange.rank();
  std::array<const void*, kShmRanksMax> sources{};
  for (int i = 0; i < n; ++i) sources[i] = i == me ? own : shm.peer_chunk(i, me, bytes, k);
  const std::span<const void* const> all(sources.data(), static_cast<size_t>(n));
  combine(arguments.reduce, arguments.in.dtype, into, all, chunks.bytes(bytes, k) / size_of(arguments.in.dtype));
}

// Copies a chunk into a result that only this rank reads. Source and destination may be the same.
void place_chunk(const Chunks& chunks, const std::byte* from, int64_t bytes, int64_t k, std::byte* part) {
  const int64_t length = chunks.bytes(bytes, k);
  std::byte* to = part + k * chunks.size;
  if (bytes >= kLongPart && from != to) return stream_copy(to, from, length);
  copy_bytes(to, from, length);
}

// Few bytes, two ranks: each reads all of the other and both add in the same order.
Coroutine reduce_whole(Exchange& exchange, ShmCollective& shm, const Arguments& arguments) {
  const int64_t bytes = arguments.out.count * size_of(arguments.out.dtype);
  const std::array<ShmCollective::Part, 1> whole{ShmCollective::Part{arguments.out.data, bytes}};
  shm.offer(whole, kWholeBytes, /*copied=*/true);
  shm.publish_chunk(0);
  shm.enter_phase(1);
  co_await shm.wait_all(1);
  reduce_chunk(shm, exchange, arguments, Chunks(bytes, kWholeBytes), arguments.out.data, bytes, 0, arguments.out.data);
  co_await shm.finish();
  for (int i = 0; i < exchange.size(); ++i) {
    if (i != exchange.rank()) shm.book(i, bytes);
  }
}

// The general all-reduce. In place: chunk k is reduced in phase k + 2. Staged: chunk k is published in phase 2k + 1 and reduced in 2k + 2.
Coroutine reduce_parts(Exchange& exchange, ShmCollective& shm, const Arguments& arguments) {
  const Sizes sizes(arguments.counts, arguments.out.dtype);
  Chunks chunks(sizes.longest(), chunk_of(exchange.size()));
  const int n = exchange.size(), me = exchange.rank();
  auto* x = static_cast<std::byte*>(arguments.out.data);
  const auto reduce_own = [&](int64_t k) {
    std::byte* own = x + sizes.begin[me] + k * chunks.size;
    const int64_t own_bytes = chunks.bytes(sizes.bytes[me], k);
    if (own_bytes == 0) return;
    reduce_chunk(shm, exchange, arguments, chunks, own, sizes.bytes[me], k, own);
    if (shm.place(me, k) != own) copy_bytes(shm.place(me, k), own, own_bytes);
  };
  const auto read_others = [&](int64_t k) {
    for (int step = 1; step < n; ++step) {
      const int peer = (me + step) % n;
      place_chunk(chunks, shm.peer_chunk(peer, peer, sizes.bytes[peer], k), sizes.bytes[peer], k, x + sizes.begin[peer]);
    }
  };
  shm.offer(PartsOf(x, sizes).all(), chunks.size);
  shm.publish_chunk(0);
  shm.enter_phase(1);
  co_await shm.wait_all(1);
  if (cut_longer(shm, chunks, sizes.longest())) {
    for (int64_t k = 0; k < chunks.count; ++k) {
      reduce_own(k);
      shm.enter_phase(static_cast<uint32_t>(k + 2));
    }
    for (int64_t k = 0; k < chunks.count; ++k) {
      co_await shm.wait_all(static_cast<uint32_t>(k + 2));
      read_others(k);
    }
  } else {
    for (int64_t k = 0; k < chunks.count; ++k) {
      const auto phase = static_cast<uint32_t>(2 * k + 1);
      if (k > 0) {
        shm.publish_chunk(k);
        shm.enter_phase(phase);
        co_await shm.wait_all(phase);
      }
      reduce_own(k);
      shm.enter_phase(phase + 1);
      co_await shm.wait_all(phase + 1);
      read_others(k);
    }
  }
  co_await shm.finish();
  for (int i = 0; i < n; ++i) {
    if (i == me) continue;
    shm.book(i, sizes.bytes[i]);
    shm.book(i, sizes.bytes[me]);
  }
}

}  // namespace

Coroutine shm_all_reduce(Exchange& exchange, ShmGroup& group, const Arguments& arguments) {
  ShmCollective shm(exchange, group);
  co_await shm.slots_ready();
  const bool whole = exchange.size() == 2 && arguments.out.count * size_of(arguments.out.dtype) <= kWholeBytes;
  Coroutine all = !shm.available() ? all_reduce_direct(exchange, arguments)
                  : whole          ? reduce_whole(exchange, shm, arguments)
                                   : reduce_parts(exchange, shm, arguments);
  co_await all;
}

Coroutine shm_all_gather(Exchange& exchange, ShmGroup& group, const Arguments& arguments) {
  ShmCollective shm(exchange, group);
  co_await shm.slots_ready();
  if (!shm.available()) {
    Coroutine all = all_gather_direct(exchange, arguments);
    co_await all;
    co_return;
  }
  const Sizes sizes(arguments.counts, arguments.in.dtype);
  Chunks chunks(sizes.longest(), chunk_of(exchange.size()));
  const int n = exchange.size(), me = exchange.rank();
  auto* out = static_cast<std::byte*>(arguments.out.data);
  const auto* in = static_cast<const std::byte*>(arguments.in.data);
  const std::array<ShmCollective::Part, 1> whole{ShmCollective::Part{in, sizes.bytes[me]}};
  const auto place_own = [&](int64_t k) { place_chunk(chunks, in + k * chunks.size, sizes.bytes[me], k, out + sizes.begin[me]); };
  const bool one = chunks.count == 1;
  shm.offer(whole, chunks.size);
  shm.publish_chunk(0);
  shm.enter_phase(1);
  if (one) place_own(0);  // while the others arrive
  co_await shm.wait_all(1);
  const bool all_published = cut_longer(shm, chunks, sizes.longest());
  for (int64_t k = 0; k < chunks.count; ++k) {
    const auto phase = static_cast<uint32_t>(k + 1);
    const bool waits = k > 0 && !all_published;
    if (waits) {
      shm.publish_chunk(k);
      shm.enter_phase(phase);
    }
    if (!one) place_own(k);
    if (waits) co_await shm.wait_all(phase);
    for (int step = 1; step < n; ++step) {
      const int peer = (me + step) % n;
      place_chunk(chunks, shm.peer_chunk(peer, me, sizes.bytes[peer], k), sizes.bytes[peer], k, out + sizes.begin[peer]);
    }
  }
  co_await shm.finish();
  for (int i = 0; i < n; ++i) {
    if (i != me) shm.book(i, sizes.bytes[me]);
  }
}

Coroutine shm_reduce_scatter(Exchange& exchange, ShmGroup& group, const Arguments& arguments) {
  ShmCollective shm(exchange, group);
  co_await shm.slots_ready();
  if (!shm.available()) {
    Coroutine all = reduce_scatter_direct(exchange, arguments);
    co_await all;
    co_return;
  }
  const Sizes sizes(arguments.counts, arguments.in.dtype);
  Chunks chunks(sizes.longest(), chunk_of(exchange.size()));
  const int n = exchange.size(), me = exchange.rank();
  const auto* in = static_cast<const std::byte*>(arguments.in.data);
  shm.offer(PartsOf(in, sizes).all(), chunks.size);
  shm.publish_chunk(0);
  shm.enter_phase(1);
  co_await shm.wait_all(1);
  const bool all_published = cut_longer(shm, chunks, sizes.longest());
  for (int64_t k = 0; k < chunks.count; ++k) {
    if (k > 0 && !all_published) {
      const auto phase = static_cast<uint32_t>(k + 1);
      shm.publish_chunk(k);
      shm.enter_phase(phase);
      co_await shm.wait_all(phase);
    }
    const std::byte* own = in + sizes.begin[me] + k * chunks.size;
    std::byte* into = static_cast<std::byte*>(arguments.out.data) + k * chunks.size;
    reduce_chunk(shm, exchange, arguments, chunks, own, sizes.bytes[me], k, into);
  }
  co_await shm.finish();
  for (int i = 0; i < n; ++i) {
    if (i != me) shm.book(i, sizes.bytes[i]);
  }
}

// Counts may differ from rank to rank, so each rank goes on as long as it has something to send or receive.
Coroutine shm_all_to_all(Exchange& exchange, ShmGroup& group, const Arguments& arguments) {
  ShmCollective shm(exchange, group);
  co_await shm.slots_ready();
  if (!shm.available()) {
    Coroutine all = all_to_all_direct(exchange, arguments);
    co_await all;
    co_return;
  }
  const Sizes outs(arguments.counts, arguments.in.dtype), ins(arguments.in_counts, arguments.in.dtype);
  const int64_t longest = std::max(outs.longest(), ins.longest());
  Chunks chunks(longest, chunk_of(exchange.size()));
  const int n = exchange.size(), me = exchange.rank();
  auto* out = static_cast<std::byte*>(arguments.out.data);
  const auto* in = static_cast<const std::byte*>(arguments.in.data);
  const auto place_own = [&](int64_t k) {
    place_chunk(chunks, in + ins.begin[me] + k * chunks.size, ins.bytes[me], k, out + outs.begin[me]);
  };
  const bool one = chunks.count == 1;
  shm.offer(PartsOf(in, ins).all(), chunks.size);
  shm.publish_chunk(0);
  shm.enter_phase(1);
  if (one) place_own(0);  // while the others arrive
  co_await shm.wait_all(1);
  const bool all_published = cut_longer(shm, chunks, longest);
  for (int64_t k = 0; k < chunks.count; ++k) {
    const auto phase = static_cast<uint32_t>(k + 1);
    const bool waits = k > 0 && !all_published;
    if (waits) {
      if (k >= 2 && shm.staged()) co_await shm.wait_all(phase - 1);
      shm.publish_chunk(k);
      shm.enter_phase(phase);
    }
    if (!one) place_own(k);
    if (waits) co_await shm.wait_all(phase);
    for (int step = 1; step < n; ++step) {
      const int peer = (me + step) % n;
      place_chunk(chunks, shm.peer_chunk(peer, me, outs.bytes[peer], k), outs.bytes[peer], k, out + outs.begin[peer]);
    }
  }
  co_await shm.finish();
  for (int i = 0; i < n; ++i) {
    if (i != me && ins.bytes[i] > 0) shm.book(i, ins.bytes[i]);
  }
}

Coroutine shm_barrier(Exchange& exchange, ShmGroup& group) {
  ShmCollective shm(exchange, group);
  co_await shm.slots_ready();
  if (!shm.available()) {
    Coroutine all = barrier_direct(exchange);
    co_await all;
    co_return;
  }
  shm.offer({}, 1);
  shm.enter_phase(1);
  co_await shm.wait_all(1);
  co_await shm.finish();
  for (int i = 0; i < exchange.size(); ++i) {
    if (i != exchange.rank()) shm.book(i, 0);
  }
}

}  // namespace cairn::comm
