#include "data/tokenizer/merge_table.h"

#include <bit>

namespace cairn::data {

MergeTable::MergeTable(std::span<const Merge> merges) : slots_(std::bit_ceil(2 * merges.size() + 2)), mask_(slots_.size() - 1) {
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto [left, right, result] = merges[rank];
    size_t slot = start(left, right);
    while (slots_[slot].rank >= 0 && (slots_[slot].left != left || slots_[slot].right != right)) slot = (slot + 1) & mask_;
    slots_[slot] = {left, right, static_cast<int32_t>(rank)};
  }
}

}  // namespace cairn::data
