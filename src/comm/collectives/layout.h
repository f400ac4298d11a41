#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/collectives/exchange.h"
#include "comm/coroutine.h"
#include "comm/dtype.h"
#include "comm/group.h"

// What the algorithms of collectives share: where elements lie, whose turn it is, and how pieces follow one another.
namespace cairn::comm {

// Steps: which message of an operation, where a pair exchanges no more than two.
inline constexpr uint32_t kParts = 0;    // unreduced parts, to their owner
inline constexpr uint32_t kResults = 1;  // reduced parts, from their owner

std::byte* at_element(const Span& span, int64_t element);
std::vector<int64_t> starts(const std::vector<int64_t>& counts);  // where each rank's elements begin
void copy_bytes(void* to, const void* from, int64_t bytes);
// The peers from the next one on, so that not all ranks turn to the same one first.
std::vector<int> peers_in_turn(const Exchange& exchange);

// Reduces this rank's own piece in rank order: the peers' versions as they lie in `views`, in the order of `peers`, and its own.
void reduce_views(const Exchange& exchange, Reduce reduce, const Span& out, const void* own, const std::vector<int>& peers,
                  const std::vector<Completion>& views);

// The parts of a buffer, one for each rank, each cut into pieces of at most `most` elements.
class Parts {
 public:
  Parts(const Span& x, std::vector<int64_t> counts, int64_t piece_bytes);
  int64_t pieces() const { return pieces_; }  // of the longest part, at least one
  int64_t bytes(int rank, int64_t piece) const;
  std::byte* place(int rank, int64_t piece) const;
  Span span(int rank, int64_t piece) const { return {place(rank, piece), bytes(rank, piece) / size_, x_.dtype}; }
  // The first pieces are sent even where they are empty (fewer elements than ranks): so no rank is done before the others began.
  bool moves(int rank, int64_t piece) const { return piece == 0 || bytes(rank, piece) > 0; }

 private:
  Span x_;
  std::vector<int64_t> counts_, begin_;
  int64_t size_;
  int64_t most_;
  int64_t pieces_;
};

// The whole of a buffer, cut into pieces.
struct Slabs {
  Slabs(const Span& x, int64_t piece_bytes);
  Span slab(int64_t k) const;

  Span x;
  int64_t most;
  int64_t pieces;  // at least one
};

// Pieces 0, 1, 2, ..., each a task; `at_once` of them are under way together.
Coroutine run_pipelined(int64_t pieces, int64_t at_once, std::function<Coroutine(int64_t)> piece);

}  // namespace cairn::comm
