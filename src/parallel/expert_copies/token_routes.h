#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "comm/count_matrix.h"
#include "mesh/ragged.h"
#include "parallel/expert_copies/copy_plan.h"

namespace cairn::parallel {

// Where the tokens of a rank go when several ranks hold an expert. For tokens at rank d assigned to expert e:
//
//   d holds e                  -> d
//   ranks of d's node hold e   -> evenly over those
//   otherwise                  -> evenly over all holders
// Evenly: row i (counted within this rank and expert) goes to holder (i + d) mod k of the k candidates in ascending order. The offset d
// keeps the remainders of different ranks apart.

// The candidates, ascending.
std::vector<int> targets_of(const mesh::Ragged& placement, int expert, int source, const NodeOf& nodes);

// The candidate to which row i goes.
inline int target_of_row(const std::vector<int>& targets, int source, int64_t row) {
  return targets[static_cast<size_t>((row + source) % static_cast<int64_t>(targets.size()))];
}

// The rows of every source rank for every expert at every holder, from the routing counts of all ranks ([source][expert]).
class TokenRoutes {
 public:
  TokenRoutes(const mesh::Ragged& placement, std::span<const int64_t> counts, const NodeOf& nodes);

  int64_t rows(int source, int target, int expert) const { return rows_[index(source, target, expert)]; }
  comm::CountMatrix matrix() const;       // over all experts
  std::vector<int64_t> received() const;  // rows that each rank computes
  // Rows that leave the busiest rank, and that reach it from others: [inside the node, between nodes], the larger direction.
  struct BusiestLink {
    int64_t inside = 0;
    int64_t between = 0;
  };
  BusiestLink busiest() const;

 private:
  size_t index(int source, int target, int expert) const {
    return (static_cast<size_t>(source) * ranks_ + static_cast<size_t>(target)) * experts_ + static_cast<size_t>(expert);
  }
  size_t ranks_, experts_;
  NodeOf nodes_;
  std::vector<int64_t> rows_;
};

}  // namespace cairn::parallel
