// Freezing parameters for a while, in one call over optimizer, gradients, weights and sync rules (optim/active_set.h).
#pragma once
#include <cstdint>
#include <functional>

#include "optim/active_optimizer.h"

namespace cairn::train {

struct Engine;
struct Job;

// The updates that a run has made, which is what ActiveOptimizer's calls want.
int64_t updates_done(const Job& job);

// Calls `change` with the active set of the engine, and tells everyone who must know. Between steps, with the same change on all ranks.
// Parameters that are frozen as a whole take no gradients and are not sent; those of which some elements move are sent as a whole.
void change_active(Engine& engine, const std::function<void(optim::ActiveOptimizer& active)>& change);

// Tells everyone again: the set was restored.
void apply_active(Engine& engine);

}  // namespace cairn::train
