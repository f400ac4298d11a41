#include "data/tokenizer/word_merger.h"

#include <limits>

#include "base/check.h"

// BPE encoding of one word: repeat { find the pair of neighbours with the lowest rank; replace it by its merge }.
//
// Short words scan all pairs for each merge, O(n^2) with tiny constants. Long words keep pieces in a doubly linked list and candidate pairs
// in a priority queue of (rank, position), O(n log n). Entries of the queue are not removed when a neighbour changes; a stale entry is
// recognised when it comes up, because the pair at its position has another rank by then.
namespace cairn::data {
namespace {

// Up to this many pieces, scanning all pairs is faster than a queue.
constexpr size_t kShort = 48;
constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
// Merging needs about twenty bytes for each piece; the bound keeps a text without spaces from taking all memory.
constexpr size_t kLongest = 16 << 20;
// Scratch memory of longer words is freed after them.
constexpr size_t kKept = 1 << 16;

}  // namespace

void WordMerger::merge(std::vector<int32_t>& into) {
  if (ids_.size() > kShort) return merge_long(into);
  if (ids_.size() > 1) merge_short();
  into.insert(into.end(), ids_.begin(), ids_.end());
}

void WordMerger::merge_short() {
  const auto rank_of = [this](int32_t left, int32_t right) {
    const int32_t rank = table_.rank(left, right);
    return rank < 0 ? kNone : rank;
  };
  size_t n = ids_.size();
  ranks_.resize(n);
  for (size_t i = 0; i + 1 < n; ++i) ranks_[i] = rank_of(ids_[i], ids_[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (ranks_[i] < ranks_[best]) best = i;
    if (ranks_[best] == kNone) break;
    ids_[best] = bpe_.merges[ranks_[best]].result;
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      ids_[i] = ids_[i + 1];
      ranks_[i] = ranks_[i + 1];
    }
    if (best + 1 < n) ranks_[best] = rank_of(ids_[best], ids_[best + 1]);
    if (best > 0) ranks_[best - 1] = rank_of(ids_[best - 1], ids_[best]);
  }
  ids_.resize(n);
}

void WordMerger::merge_long(std::vector<int32_t>& into) {
  if (ids_.size() > kLongest)
    base::fail_input("a word of {} characters, and at most {} can be encoded: is this text, with spaces and line breaks?", ids_.size(),
                     kLongest);
  const auto n = static_cast<int32_t>(ids_.size());
  symbols_.resize(ids_.size());
  for (int32_t i = 0; i < n; ++i) symbols_[i] = {ids_[i], i - 1, i + 1 < n ? i + 1 : -1};
  for (int32_t i = 0; i + 1 < n; ++i) offer(i);
  while (!queue_.empty()) {
    const auto [rank, at] = queue_.top();
    queue_.pop();
    // Stale if the piece was merged away or a neighbour changed: a rank belongs to one pair.
    if (symbols_[at].id < 0 || symbols_[at].next < 0 || rank_at(at) != rank) continue;
    join(at, bpe_.merges[rank].result);
  }
  for (int32_t i = 0; i >= 0; i = symbols_[i].next) into.push_back(symbols_[i].id);
  if (ids_.size() <= kKept) return;
  ids_ = {};
  symbols_ = {};
  queue_ = {};
}

void WordMerger::offer(int32_t at) {
  if (const int32_t rank = rank_at(at); rank >= 0) queue_.emplace(rank, at);
}

void WordMerger::join(int32_t at, int32_t result) {
  Symbol& left = symbols_[at];
  Symbol& right = symbols_[left.next];
  left.id = result;
  left.next = right.next;
  right.id = -1;
  if (left.next >= 0) {
    symbols_[left.next].previous = at;
    offer(at);
  }
  if (left.previous >= 0) offer(left.previous);
}

}  // namespace cairn::data
