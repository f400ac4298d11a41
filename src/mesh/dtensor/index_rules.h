// Which placements an operation can compute with, from the indices of its operands.
//
// "mk,kn->mn" is a matrix product: an index of the output may be split (operands that have it are split there, others replicated), and so
// may a summed index (the result is then partial). An operation that is linear maps terms of a sum to terms. These are OneFlow's SBP
// signatures (arXiv:2110.15032), for one axis.
#pragma once
#include <string>
#include <vector>

#include "mesh/placement.h"

namespace cairn::mesh {

struct IndexRule {
  enum class Linear {
    no,
    each,     // in each operand: a product. One of them may be partial.
    jointly,  // in all together: a sum. All of them may be partial.
    first     // in the first operand: a quotient
  };
  std::vector<std::string> operands;  // one subscript for each dim; ' ' for a dim of size 1 that is repeated
  std::string result;
  std::string whole = {};  // subscripts that cannot be split: a softmax needs all of them
  Linear linear = Linear::no;
};

// A tensor as a rule sees it.
struct PlacedOperand {
  std::vector<int64_t> shape;
  Placement::How how;
  int64_t item_bytes = 4;
};

struct PlacementChoice {
  std::vector<Placement::How> operands;
  Placement::How result;
};

// The choice that sends the fewest bytes, counted as if a partial result is reduced once. The same on every rank.
PlacementChoice choose_placements(const IndexRule& rule, const std::vector<PlacedOperand>& operands, int ranks);

// Subscripts for an elementwise operation whose operands broadcast to one shape.
IndexRule elementwise_rule(const std::vector<PlacedOperand>& operands, IndexRule::Linear linear);
// For a reduction of one operand over some dims; none listed: over all.
IndexRule reduction_rule(const PlacedOperand& operand, std::vector<int64_t> dims, bool keep);

}  // namespace cairn::mesh
