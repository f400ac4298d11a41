#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/activations/activation_bytes.h"
#include "parallel/policies.h"

namespace cairn::parallel {

// Activation recomputation (gradient checkpointing, Chen et al. 2016, arXiv:1604.06174): which blocks keep only their inputs in forward and
// run forward again in backward. Trades one more forward of these blocks for their activations.
struct RecomputeRule {
  RecomputeMode mode = RecomputeMode::none;
  std::vector<std::string> modules = {};  // selective: patterns of block names, * stands for anything; empty: all
  int64_t every = 1;                      // selective: of those, every n-th
  int64_t budget_bytes = 0;               // budget: of one micro-batch on one rank
  bool operator==(const RecomputeRule&) const = default;
};

// By block: whether it is recomputed. The block that makes the logits never is. Throws bad_input for patterns that match no block, and for
// a budget that is exceeded even if every block keeps its inputs alone. `rank_of_block`: the rank along pp of each block, each with a
// budget of its own; empty: one rank runs all.
std::vector<bool> recomputed_blocks(const RecomputeRule& rule, const model::Model& model, const ActivationSetup& setup,
                                    const std::vector<int>& rank_of_block = {});

// RecomputeMode::stream with a budget: the largest slice, of `length` tokens divided into equally many, with which no rank's peak of
// activations exceeds it. `setup.slices` is ignored. Throws bad_input where even the smallest slices exceed it.
int64_t slice_within(int64_t budget_bytes, const model::Model& model, ActivationSetup setup, int64_t length,
                     const std::vector<int>& rank_of_block = {});

}  // namespace cairn::parallel
