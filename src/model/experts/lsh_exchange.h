#pragma once
#include <cstdint>
#include <memory>

#include "model/experts/exchange.h"
#include "model/experts/lsh.h"

namespace cairn::model {

// Any exchange with compressed rows: centroids travel both ways, in forward and backward, and residuals stay (lsh.h). Rows are clustered on
// each rank and for each expert by itself, also those for experts of this rank. Passes that do not train exchange rows as they are.
//
// Clusters are found in the forward pass and kept for the backward pass, so gradients never depend on hashing again. A recomputed forward
// pass finds the same. Metrics: expert_compression, centroids over the rows that they stand for.
std::unique_ptr<ExpertExchange> make_lsh_exchange(std::unique_ptr<ExpertExchange> inside, int64_t embed, const LshOptions& options);

}  // namespace cairn::model
