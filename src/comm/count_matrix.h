#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "comm/label.h"

namespace cairn::comm {

class Group;

// How many rows each rank of a group sends to each other one in an uneven all-to-all. All ranks know it before a row travels, so that each
// can size its buffers and choose the same path.
struct CountMatrix {
  int ranks = 0;
  std::vector<int64_t> counts;  // [from][to], by position in the group

  int64_t at(int from, int to) const { return counts[static_cast<size_t>(from) * static_cast<size_t>(ranks) + static_cast<size_t>(to)]; }
  std::vector<int64_t> sent_by(int from) const;    // by receiver
  std::vector<int64_t> received_by(int to) const;  // by sender
  bool operator==(const CountMatrix&) const = default;
};

// Refuses a matrix of another size, a negative or absurd count, and a rank whose counts do not add up to the rows that it says it sends
// (`rows`, by rank). Names that rank. A pure function of its arguments, so all ranks refuse together.
void check(const CountMatrix& matrix, std::span<const int64_t> rows);

// Collects the matrix: one all-gather of n + 1 integers per rank. `counts[i]` rows go from here to position i, `rows` in all. Throws on all
// ranks together if the matrix does not add up, before any of them makes a buffer for rows.
CountMatrix exchange_counts(Group& group, std::span<const int64_t> counts, int64_t rows, Label label);

}  // namespace cairn::comm
