#pragma once
#include <memory>

#include "model/objective.h"

namespace cairn::model {

// The value with the logits of another pass over the same batch (train/step_passes.h), for the objective below.
inline constexpr const char* kOtherLogits = "other.logits";

struct ConsistencyWeights {
  double own = 1;        // of the objective's own loss
  double agreement = 1;  // of the divergence from the other pass
};

// An objective over "logits" that also draws them to those of another pass, q = softmax(other), which are a constant:
//
//   own * loss(logits) + agreement * sum over rows with a target of KL(q || softmax(logits))
//
// in fp32. Reports the loss of `objective` alone, and among its measures the mean divergence, "consistency", where there is another pass.
// Along tp the vocabulary may be sharded.
std::unique_ptr<Objective> make_consistency(std::shared_ptr<const Objective> objective, ConsistencyWeights weights);

}  // namespace cairn::model
