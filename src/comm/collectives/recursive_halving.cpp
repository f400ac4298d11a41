// All-reduce by recursive halving and doubling (Rabenseifner 2004): 2 log2 p messages per rank, and as few bytes as the ring.
//
// p = the largest power of two up to n. At level j = 0 .. log2 p - 1, ranks v and v xor 2^j swap halves of the range that both still work
// on: the lower rank keeps the first half, the upper rank the second one.
//   keep = keep_own op keep_received          (the lower rank's values always stand on the left)
// After the last level each rank has a range of S/p reduced bytes. Then the levels run backwards: the same pairs swap their finished
// ranges, which doubles them until all have everything. Every element is summed in the same tree ((0 + 1) + (2 + 3)) + ..., whoever owns
// it, so that all ranks get bitwise identical results.
//
// n > p: the first 2(n - p) ranks form pairs. The odd rank of a pair sends its x to the even one first and gets the result at the end.
#include <array>
#include <bit>

#include "comm/collectives/collectives.h"
#include "comm/collectives/layout.h"

namespace cairn::comm {
namespace {

class Halving {
 public:
  Halving(Exchange& exchange, const Arguments& arguments)
      : exchange_(exchange),
        reduce_(arguments.reduce),
        slabs_(arguments.out, 2 * exchange.chunking().bytes),
        me_(exchange.rank()),
        power_(static_cast<int>(std::bit_floor(static_cast<unsigned>(exchange.size())))),
        pairs_(exchange.size() - power_),
        levels_(std::bit_width(static_cast<unsigned>(power_)) - 1) {}

  int64_t pieces() const { return slabs_.pieces; }

  Coroutine piece(int64_t k) {
    const Span slab = slabs_.slab(k);
    std::vector<Completion> sent;
    if (paired() && me_ % 2 == 1) {
      Completion result = exchange_.recv(me_ - 1, step(k, 2 * levels_ + 1), slab.data, bytes(slab));
      send(sent, me_ - 1, step(k, 0), slab);
      co_await result;
    } else {
      Coroutine inner = among_powers(k, slab, sent);
      co_await inner;
    }
    for (Completion& gone : sent) co_await gone;
  }

 private:
  bool paired() const { return me_ < 2 * pairs_; }
  int number() const { return paired() ? me_ / 2 : me_ - pairs_; }
  int rank_of(int number) const { return number < pairs_ ? 2 * number : number + pairs_; }
  uint32_t step(int64_t k, int message) const { return static_cast<uint32_t>(k * (2 * levels_ + 2) + message); }
  static int64_t bytes(const Span& range) { return range.count * size_of(range.dtype); }

  void send(std::vector<Completion>& sent, int peer, uint32_t step, const Span& range) {
    sent.push_back(exchange_.send(peer, step, range.data, bytes(range)));
  }

  void add(const Span& to, const void* left, const void* right) {
    const std::array<const void*, 2> sources{left, right};
    combine(reduce_, to.dtype, to.data, sources, to.count);
  }

  Coroutine among_powers(int64_t k, Span range, std::vector<Completion>& sent) {
    const Span slab = range;
    if (paired()) {
      Completion theirs = exchange_.recv_view(me_ + 1, step(k, 0), bytes(slab));
      co_await theirs;
      add(slab, slab.data, theirs.view());
    }
    std::vector<Span> given, whole;  // by level
    for (int level = 0; level < levels_; ++level) {
      const bool lower = (number() >> level) % 2 == 0;
      const int64_t half = (range.count + 1) / 2;
      const Span first{range.data, half, range.dtype}, second{at_element(range, half), range.count - half, range.dtype};
      const int peer = rank_of(number() ^ (1 << level));
      whole.push_back(range);
      given.push_back(lower ? second : first);
      range = lower ? first : second;
      Completion theirs = exchange_.recv_view(peer, step(k, 1 + level), bytes(range));
      send(sent, peer, step(k, 1 + level), given.back());
      co_await theirs;
      lower ? add(range, range.data, theirs.view()) : add(range, theirs.view(), range.data);
    }
    for (int level = levels_ - 1; level >= 0; --level) {
      const int peer = rank_of(number() ^ (1 << level));
      const uint32_t message = step(k, 2 * levels_ - level);
      Completion theirs = exchange_.recv(peer, message, given[level].data, bytes(given[level]));
      send(sent, peer, message, range);
      co_await theirs;
      range = whole[level];
    }
    if (paired()) send(sent, me_ + 1, step(k, 2 * levels_ + 1), slab);
  }

  Exchange& exchange_;
  Reduce reduce_;
  Slabs slabs_;
  int me_;
  int power_;   // p
  int pairs_;   // n - p
  int levels_;  // log2 p
};

}  // namespace

Coroutine all_reduce_halving(Exchange& exchange, const Arguments& arguments) {
  if (exchange.size() == 1) co_return;
  Halving run(exchange, arguments);
  Coroutine all = run_pipelined(run.pieces(), exchange.chunking().in_flight, [&](int64_t k) { return run.piece(k); });
  co_await all;
}

}  // namespace cairn::comm
