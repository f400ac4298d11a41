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

// A model as the planner sees it: the cards of its blocks in running order, and its parameters. Made from a model, or written by hand for
// one without code (described_models.h).
struct Description {
  std::vector<model::Card> cards;
  std::vector<model::Parameter> parameters;
};
Description describe(const model::Model& model);

// The batch of a pass.
struct PassShape {
  int64_t batch = 1;
  int64_t length = 1;
  int64_t other_length = 0;  // of values along another sequence (an encoder's); 0: the same
};

// The detail of a lookup by position: its ids count up, they are not data of the batch.
inline constexpr std::string_view kByPosition = "by position";

// The operations of one forward pass, from the cards alone. Every value is [batch, length, width]. A product with several weights becomes
// one operation per weight; biases become operations of their own. `loss`: a cross entropy and a mean follow the value "logits", if there
// is one. Operations of kind `other`, and parameters that no known operation uses, are replicated.
OpGraph graph_of(const Description& description, const PassShape& shape, bool loss = true);

}  // namespace cairn::planner
