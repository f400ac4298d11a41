#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/activations/activation_bytes.h"

namespace cairn::parallel {

// What a pass forgets of its activations and computes again for its gradients.
struct RecomputeRule {
  RecomputeMode mode = RecomputeMode::none;
  std::vector<std::string> modules = {};  // patterns of block names, in which * stands for anything; empty: all
  int64_t every = 1;                      // of those, each how manyeth
  int64_t budget_bytes = 0;               // of one micro-batch on one rank
  bool operator==(const RecomputeRule&) const = default;
};

// Which blocks compute their inside again; what makes logits never does. Refuses patterns that fit no block, and a budget that even keeping
// the inputs alone exceeds. `rank_of_block`: which rank along pp runs each, and has a budget of its own for those; empty: one runs all.
std::vector<bool> recomputed_blocks(const RecomputeRule& rule, const model::Model& model, const ActivationSetup& setup,
                                    const std::vector<int>& rank_of_block = {});

}  // namespace cairn::parallel
