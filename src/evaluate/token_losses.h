#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "evaluate/evaluated_model.h"

namespace cairn::evaluate {

// A sequence to score: tokens from `first` (at least 1) on, each given all tokens before it. At most EvaluatedModel::length + 1 tokens.
struct ScoredTokens {
  std::vector<int32_t> tokens;
  int64_t first = 1;
};

// -log p of each scored token, in nats, for each row. The rows run as one batch, so they should have similar lengths; a row's result does
// not depend on the others, up to fp32 rounding. Logits are computed for scored positions only, a bounded number at a time.
std::vector<std::vector<float>> token_losses(const EvaluatedModel& evaluated, std::span<const ScoredTokens> rows);

// The same for any number of rows, in batches of similar length. Results are in the order of the rows.
std::vector<std::vector<float>> token_losses(const EvaluatedModel& evaluated, std::span<const ScoredTokens> rows, int64_t batch,
                                             const OnProgress& progress = {});

}  // namespace cairn::evaluate
