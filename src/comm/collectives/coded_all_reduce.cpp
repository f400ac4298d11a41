// Compressed all-reduce with a codec (codec.h). E, D = encode, decode of the parts; E', D' = of the sums (usually the same codec).
//
// x is cut into n parts of whole blocks; rank r owns part r.
//   1. every rank i sends E(x_i[r]) to rank r
//   2. rank r computes  s_r = sum over i = 0 .. n-1 of D(E(x_i[r])),  in float, in rank order; its own part is coded as well
//   3. rank r sends E'(s_r) to all; every rank, r included, keeps  D'(E'(s_r))
// Since the owner also keeps the decoded value, all ranks hold bitwise identical results, and it does not matter who owns which part.
// The codec has no memory: error feedback is the caller's business.
#include "comm/collectives/coded_all_reduce.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>

namespace cairn::comm {
namespace {

constexpr int64_t kSlotElements = 1 << 20;  // elements of one piece over all parts, at most: bounds the memory with many ranks

// The parts are cut into pieces: while one piece is summed, the next ones are in flight. Piece k of a part is message 2k (its code, to the
// owner) and message 2k + 1 (the code of the sum, from the owner). A few slots of memory are reused in turn.
class PiecewiseCoded {
 public:
  PiecewiseCoded(Exchange& exchange, const Codec& parts, const Codec& sums, float* x, int64_t count)
      : exchange_(exchange), parts_(parts), sums_(sums), x_(x), me_(exchange.rank()), ranks_(exchange.size()) {
    const int64_t block = std::lcm(parts.block(), sums.block());
    counts_ = block_counts(count, ranks_, block);
    begin_.resize(counts_.size());
    std::exclusive_scan(counts_.begin(), counts_.end(), begin_.begin(), int64_t{0});
    const Chunking cut = exchange.chunking();
    const int64_t fitting = std::min<int64_t>(cut.bytes / static_cast<int64_t>(sizeof(float)), kSlotElements / ranks_);
    most_ = std::max<int64_t>(1, fitting / block) * block;
    pieces_ = std::max<int64_t>(1, (counts_[0] + most_ - 1) / most_);
    part_bytes_ = parts.encoded_bytes(std::min(most_, counts_[0]));
    const int64_t sum_bytes = sums.encoded_bytes(std::min(most_, counts_[0]));
    slots_.resize(
        static_cast<size_t>(std::min(std::max<int64_t>(2, cut.in_flight), pieces_)));  // a piece starts before the previous one ends
    for (Slot& slot : slots_) {
      slot.memory = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(part_bytes_ * ranks_ + sum_bytes));
    }
  }

  // One piece in flight. The memory is declared first, so that the transfers are destroyed before it.
  struct Slot {
    std::unique_ptr<std::byte[]> memory;  // outgoing codes: our version of every rank's part, and our sum
    std::vector<Completion> parts, sums;  // by rank: the code of its version of our part, the code of its sum
    std::vector<Completion> sent;
  };

  int64_t pieces() const { return pieces_; }
  int64_t in_flight() const { return static_cast<int64_t>(slots_.size()); }
  Slot& slot(int64_t k) { return slots_[static_cast<size_t>(k % in_flight())]; }

  // Posts the receives of piece k and sends the other ranks their parts. The first piece is sent even if it is empty, so that every rank
  // hears from every other one and can name a late or mismatched rank.
  void start(int64_t k) {
    Slot& now = slot(k);
    const auto step = static_cast<uint32_t>(2 * k);
    const int64_t own = size(me_, k);
    now.parts.resize(static_cast<size_t>(ranks_));
    now.sums.resize(static_cast<size_t>(ranks_));
    for (int i = 1; i < ranks_; ++i) {
      const int peer = (me_ + i) % ranks_;
      const int64_t theirs = size(peer, k);
      if (own > 0 || k == 0) now.parts[peer] = exchange_.recv_view(peer, step, parts_.encoded_bytes(own));
      if (theirs > 0) now.sums[peer] = exchange_.recv_view(peer, step + 1, sums_.encoded_bytes(theirs));
    }
    for (int i = 1; i < ranks_; ++i) {
      const int peer = (me_ + i) % ranks_;
      const int64_t theirs = size(peer, k);
      if (theirs == 0 && k > 0) continue;
      parts_.encode(place(peer, k), theirs, part(k, peer));
      now.sent.push_back(exchange_.send(peer, step, part(k, peer), parts_.encoded_bytes(theirs)));
    }
  }

  // All versions of this rank's piece have arrived: sums them in rank order and sends the code of the sum to all.
  void add_up(int64_t k) {
    Slot& now = slot(k);
    const int64_t own = size(me_, k);
    if (own > 0) {
      float* out = place(me_, k);
      parts_.encode(out, own, part(k, me_));
      for (int rank = 0; rank < ranks_; ++rank) {
        const std::byte* codes = rank == me_ ? part(k, me_) : now.parts[rank].view();
        rank == 0 ? parts_.decode(codes, own, out) : parts_.decode_add(codes, own, out);
      }
      std::byte* sum = part(k, ranks_);
      sums_.encode(out, own, sum);
      for (int i = 1; i < ranks_; ++i) {
        now.sent.push_back(exchange_.send((me_ + i) % ranks_, static_cast<uint32_t>(2 * k + 1), sum, sums_.encoded_bytes(own)));
      }
      sums_.decode(sum, own, out);
    }
    now.parts.clear();  // releases the received codes
  }

  // The sum of that rank's piece has arrived.
  void keep(int64_t k, int rank) {
    const int64_t theirs = size(rank, k);
    if (rank == me_ || theirs == 0) return;
    sums_.decode(slot(k).sums[rank].view(), theirs, place(rank, k));
    slot(k).sums[rank] = Completion();
  }

 private:
  int64_t size(int rank, int64_t k) const { return std::clamp<int64_t>(counts_[rank] - k * most_, 0, most_); }
  float* place(int rank, int64_t k) const { return x_ + begin_[rank] + std::min(k * most_, counts_[rank]); }
  std::byte* part(int64_t k, int rank) { return slot(k).memory.get() + part_bytes_ * rank; }  // index ranks_: the sum

  Exchange& exchange_;
  const Codec& parts_;
  const Codec& sums_;
  float* x_;
  int me_;
  int ranks_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> begin_;
  int64_t most_ = 0;  // elements per piece
  int64_t pieces_ = 0;
  int64_t part_bytes_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace

std::vector<int64_t> block_counts(int64_t count, int ranks, int64_t block) {
  const int64_t blocks = (count + block - 1) / block;
  std::vector<int64_t> counts;
  for (int64_t rank = 0, left = count; rank < ranks; ++rank) {
    const int64_t whole = (blocks / ranks + (rank < blocks % ranks ? 1 : 0)) * block;
    counts.push_back(std::min(whole, left));
    left -= counts.back();
  }
  return counts;
}

Coroutine coded_all_reduce(Exchange& exchange, const Codec& parts, const Codec& sums, float* x, int64_t count) {
  PiecewiseCoded run(exchange, parts, sums, x, count);
  for (int64_t k = 0; k < run.in_flight(); ++k) run.start(k);
  // The sums of a piece travel while the next piece is added up.
  for (int64_t k = 0; k <= run.pieces(); ++k) {
    if (k < run.pieces()) {
      for (Completion& received : run.slot(k).parts) co_await received;
      run.add_up(k);
    }
    if (k == 0) continue;
    PiecewiseCoded::Slot& before = run.slot(k - 1);
    for (int rank = 0; rank < exchange.size(); ++rank) {
      Completion& received = before.sums[rank];
      co_await received;
      run.keep(k - 1, rank);
    }
    for (Completion& gone : before.sent) co_await gone;
    before.sent.clear();
    if (k - 1 + run.in_flight() < run.pieces()) run.start(k - 1 + run.in_flight());
  }
}

Coroutine coded_all_reduce(Exchange& exchange, const Codec& codec, float* x, int64_t count) {
  return coded_all_reduce(exchange, codec, codec, x, count);
}

Coroutine coded_all_reduce(Exchange& exchange, const Arguments& arguments) {
  return coded_all_reduce(exchange, *arguments.codec, static_cast<float*>(arguments.out.data), arguments.out.count);
}

}  // namespace cairn::comm
