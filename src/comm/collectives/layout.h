#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/collectives/exchange.h"
#include "comm/coroutine.h"
#include "comm/dtype.h"
#include "comm/group.h"

// Shared by the collective algorithms: offsets of parts, the order of peers, pipelining of pieces.
namespace cairn::comm {

// Message numbers (steps) of algorithms in which a pair of ranks exchanges at most two messages.
inline constexpr uint32_t kParts = 0;    // unreduced parts, to their owner
inline constexpr uint32_t kResults = 1;  // reduced parts, from their owner

std::byte* at_element(const Span& span, int64_t element);
std::vector<int64_t> starts(const std::vector<int64_t>& counts);  // exclusive prefix sums
void copy_bytes(void* to, const void* from, int64_t bytes);
// All peers, starting after this rank, so that not all ranks send to the same one first.
std::vector<int> peers_in_turn(const Exchange& exchange);

// Reduces a piece in rank order: views[i] is the version of peers[i], `own` that of this rank.
void reduce_views(const Exchange& exchange, Reduce reduce, const Span& out, const void* own, const std::vector<int>& peers,
                  const std::vector<Completion>& views);

// A buffer cut into one part per rank, and each part into pieces of at most `most` elements.
class Parts {
 public:
  Parts(const Span& x, std::vector<int64_t> counts, int64_t piece_bytes);
  int64_t pieces() const { return pieces_; }  // of the longest part; at least one
  int64_t bytes(int rank, int64_t piece) const;
  std::byte* place(int rank, int64_t piece) const;
  Span span(int rank, int64_t piece) const { return {place(rank, piece), bytes(rank, piece) / size_, x_.dtype}; }
  // First pieces are sent even if they are empty (fewer elements than ranks), so that no rank ends before all have started.
  bool moves(int rank, int64_t piece) const { return piece == 0 || bytes(rank, piece) > 0; }

 private:
  Span x_;
  std::vector<int64_t> counts_, begin_;
  int64_t size_;
  int64_t most_;
  int64_t pieces_;
};

// A buffer cut into pieces.
struct Slabs {
  Slabs(const Span& x, int64_t piece_bytes);
  Span slab(int64_t k) const;

  Span x;
  int64_t most;
  int64_t pieces;  // at least one
};

// Runs piece(0), piece(1), ..., with at most `at_once` of them in flight.
Coroutine run_pipelined(int64_t pieces, int64_t at_once, std::function<Coroutine(int64_t)> piece);

}  // namespace cairn::comm
