#include "model/hyperbolic/options.h"

namespace cairn::model {

base::Schema<HyperbolicOptions> hyperbolic_schema() {
  using O = HyperbolicOptions;
  return {"model.hyperbolic",
          "Graph networks in hyperbolic space of curvature -1 (model.kind = \"lorentz\").",
          {{"nodes", &O::nodes, "Nodes of the graph. Samples name two of them by number, from 0, and the label is their distance.",
            base::at_least(0)},
           {"graph", &O::graph, "A file with the two nodes of an edge on each line. Without it nodes see only themselves."}}};
}

}  // namespace cairn::model
