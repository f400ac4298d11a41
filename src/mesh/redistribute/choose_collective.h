#pragma once
#include <vector>

#include "mesh/redistribute_plan.h"

namespace cairn::mesh {

// The pieces sorted into sets that have no rank in common, each by receiver and box: who exchanges with whom.
std::vector<std::vector<BoxTransfer>> independent_groups(std::vector<BoxTransfer> transfers);

// The collective that carries the pieces of one such set: the table from what moves to what moves it.
ExchangeStep choose_collective(std::vector<BoxTransfer> transfers);

// Where partial values are wanted by several ranks: `first` reduces every box at one of the ranks that want it, in even shares, preferring
// those that hold a term already; `second` gives the results to all that want them. Empty where no such box is among the pieces.
struct TwoRounds {
  std::vector<BoxTransfer> first;
  std::vector<BoxTransfer> second;
};
TwoRounds in_two_rounds(const std::vector<BoxTransfer>& transfers);

}  // namespace cairn::mesh
