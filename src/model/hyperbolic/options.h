// The recipe's model.hyperbolic.* keys.
#pragma once
#include <cstdint>
#include <string>

#include "base/schema.h"

namespace cairn::model {

struct HyperbolicOptions {
  int64_t nodes = 0;  // of the graph; the data name them by number
  std::string graph;  // a file of edges
  bool operator==(const HyperbolicOptions&) const = default;
};
base::Schema<HyperbolicOptions> hyperbolic_schema();

}  // namespace cairn::model
