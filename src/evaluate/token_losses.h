#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "evaluate/evaluated_model.h"

namespace cairn::evaluate {

// Tokens to judge: those from `first` (at least 1) on, each after all before it. At most EvaluatedModel::length + 1 of them.
struct ScoredTokens {
  std::vector<int32_t> tokens;
  int64_t first = 1;
};

// -log p of each judged token, in nats, for each of the rows. The rows are read together, so they should be about equally long; what one
// gets does not depend on the others, up to the rounding of fp32. Logits are made for the judged positions alone, a bounded number at a
// time.
std::vector<std::vector<float>> token_losses(const EvaluatedModel& evaluated, std::span<const ScoredTokens> rows);

// The same in batches of rows that are about equally long. In the order of the rows.
std::vector<std::vector<float>> token_losses(const EvaluatedModel& evaluated, std::span<const ScoredTokens> rows, int64_t batch,
                                             const OnProgress& progress = {});

}  // namespace cairn::evaluate
