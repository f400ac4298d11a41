// Looks up the merge of two neighbouring pieces.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "data/tokenizer/bpe.h"

namespace cairn::data {

// An open-addressing hash table from (left, right) to the rank of the merge, its place in the list.
class MergeTable {
 public:
  explicit MergeTable(std::span<const Merge> merges);

  // The rank of the merge of this pair (0 is applied first), or -1. If a pair has two merges the last one wins, as in the `tokenizers`
  // library.
  int32_t rank(int32_t left, int32_t right) const {
    for (size_t slot = start(left, right);; slot = (slot + 1) & mask_) {
      const Slot& here = slots_[slot];
      if (here.rank < 0 || (here.left == left && here.right == right)) return here.rank;
    }
  }

 private:
  struct Slot {
    int32_t left = 0;
    int32_t right = 0;
    int32_t rank = -1;
  };

  size_t start(int32_t left, int32_t right) const {
    const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    return (key * 0x9e3779b97f4a7c15u >> 32) & mask_;
  }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

}  // namespace cairn::data
