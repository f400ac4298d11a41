#pragma once
#include <vector>

#include "mesh/redistribute_plan.h"

namespace cairn::mesh {

// Groups the transfers into sets with no rank in common (the connected components of who exchanges with whom). Each set is sorted by
// receiver and box.
std::vector<std::vector<BoxTransfer>> independent_groups(std::vector<BoxTransfer> transfers);

// The collective that carries out one such set of transfers. choose_collective.cpp has the table.
ExchangeStep choose_collective(std::vector<BoxTransfer> transfers);

// A reduction whose result several ranks need, as two rounds. `first` reduces each box at one of these ranks, in even shares; ranks that
// hold a term are preferred. `second` sends the results to all of them. Both are empty where no box is needed by several ranks.
struct TwoRounds {
  std::vector<BoxTransfer> first;
  std::vector<BoxTransfer> second;
};
TwoRounds in_two_rounds(const std::vector<BoxTransfer>& transfers);

}  // namespace cairn::mesh
