#pragma once
#include <vector>

#include "mesh/redistribute_plan.h"

namespace cairn::mesh {

// The pieces sorted into sets that have no rank in common, each by receiver and box: who exchanges with whom.
std::vector<std::vector<Piece>> separate(std::vector<Piece> pieces);

// The collective that carries the pieces of one such set: the table from what moves to what moves it.
Step step_for(std::vector<Piece> pieces);

// Where partial values are wanted by several ranks: `first` reduces every box at one of the ranks that want it, in even shares, preferring
// those that hold a term already; `second` gives the results to all that want them. Empty where no such box is among the pieces.
struct TwoRounds {
  std::vector<Piece> first;
  std::vector<Piece> second;
};
TwoRounds in_two_rounds(const std::vector<Piece>& pieces);

}  // namespace cairn::mesh
