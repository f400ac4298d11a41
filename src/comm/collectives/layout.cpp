#include "comm/collectives/layout.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace cairn::comm {
namespace {

// Pieces first, first + stride, ..., one after the other.
Coroutine lane(const std::function<Coroutine(int64_t)>& piece, int64_t first, int64_t stride, int64_t pieces) {
  for (int64_t k = first; k < pieces; k += stride) {
    Coroutine one = piece(k);
    co_await one;
  }
}

}  // namespace

std::byte* at_element(const Span& span, int64_t element) { return static_cast<std::byte*>(span.data) + element * size_of(span.dtype); }

std::vector<int64_t> starts(const std::vector<int64_t>& counts) {
  std::vector<int64_t> begin(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begin.begin(), int64_t{0});
  return begin;
}

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, static_cast<size_t>(bytes));
}

std::vector<int> peers_in_turn(const Exchange& exchange) {
  std::vector<int> peers;
  for (int k = 1; k < exchange.size(); ++k) peers.push_back((exchange.rank() + k) % exchange.size());
  return peers;
}

void reduce_views(const Exchange& exchange, Reduce reduce, const Span& out, const void* own, const std::vector<int>& peers,
                  const std::vector<Completion>& views) {
  std::vector<const void*> sources(static_cast<size_t>(exchange.size()), own);
  for (size_t i = 0; i < peers.size(); ++i) sources[peers[i]] = views[i].view();
  combine(reduce, out.dtype, out.data, sources, out.count);
}

Parts::Parts(const Span& x, std::vector<int64_t> counts, int64_t piece_bytes)
    : x_(x),
      counts_(std::move(counts)),
      begin_(starts(counts_)),
      size_(size_of(x.dtype)),
      most_(std::max<int64_t>(1, piece_bytes / size_)),
      pieces_(std::max<int64_t>(1, (*std::max_element(counts_.begin(), counts_.end()) + most_ - 1) / most_)) {}

int64_t Parts::bytes(int rank, int64_t piece) const { return std::clamp<int64_t>(counts_[rank] - piece * most_, 0, most_) * size_; }

std::byte* Parts::place(int rank, int64_t piece) const { return at_element(x_, begin_[rank] + std::min(piece * most_, counts_[rank])); }

Slabs::Slabs(const Span& all, int64_t piece_bytes)
    : x(all), most(std::max<int64_t>(1, piece_bytes / size_of(x.dtype))), pieces(std::max<int64_t>(1, (x.count + most - 1) / most)) {}

Span Slabs::slab(int64_t k) const { return {at_element(x, k * most), std::min(most, x.count - k * most), x.dtype}; }

Coroutine run_pipelined(int64_t pieces, int64_t at_once, std::function<Coroutine(int64_t)> piece) {
  std::vector<Coroutine> lanes;
  const int64_t width = std::clamp<int64_t>(at_once, 1, pieces);
  for (int64_t first = 0; first < width; ++first) lanes.push_back(lane(piece, first, width, pieces));
  for (Coroutine& one : lanes) co_await one;
}

}  // namespace cairn::comm
