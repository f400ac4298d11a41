// Applies the merges of a BPE to one word.
#pragma once
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/merge_table.h"

namespace cairn::data {

// Owns scratch memory only; use one per thread. `bpe` and `table` must outlive it.
class WordMerger {
 public:
  WordMerger(const Bpe& bpe, const MergeTable& table) : bpe_(bpe), table_(table) {}

  // The initial ids of a word, one for each byte or character. The caller fills them, then calls merge.
  std::vector<int32_t>& start() {
    ids_.clear();
    return ids_;
  }
  // Applies the merge of lowest rank, leftmost first, until none applies. Appends the resulting ids.
  void merge(std::vector<int32_t>& into);

 private:
  struct Symbol {
    int32_t id;  // -1: merged into its left neighbour
    int32_t previous;
    int32_t next;
  };
  using Candidate = std::pair<int32_t, int32_t>;  // rank, position

  void merge_short();
  void merge_long(std::vector<int32_t>& into);
  int32_t rank_at(int32_t at) const { return table_.rank(symbols_[at].id, symbols_[symbols_[at].next].id); }
  void offer(int32_t at);
  void join(int32_t at, int32_t result);

  const Bpe& bpe_;
  const MergeTable& table_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> ranks_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue_;
};

}  // namespace cairn::data
