#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/card.h"
#include "model/parameter.h"
#include "planner/graph/op_graph.h"

namespace cairn::model {
class Model;
}

namespace cairn::planner {

// A model as rules see it: the cards of its blocks in running order, and its parameters. Made from a model, or written down for one whose
// code is not here.
struct Description {
  std::vector<model::Card> cards;
  std::vector<model::Parameter> parameters;
};
Description describe(const model::Model& model);

// What a pass runs on.
struct PassShape {
  int64_t batch = 1;
  int64_t length = 1;
  int64_t other_length = 0;  // of values that are not along the first sequence (an encoder's); 0: the same
};

// The detail of a lookup whose ids the block makes up itself where a batch has none (its card only may read them): they count, they are no
// data.
inline constexpr std::string_view kByPosition = "by position";

// The operations of one forward pass, from the cards alone. Every value is [batch, length, width]. A product with several weights becomes
// one operation for each, biases become operations of their own. `loss`: a cross entropy and a mean follow the value "logits", if there is
// one.
//
// An operation that a card calls `other`, and a parameter that no operation of a known kind names, are kept on every rank.
OpGraph graph_of(const Description& description, const PassShape& shape, bool loss = true);

}  // namespace cairn::planner
