// What the recipe says about ranks that are lost (train.on_loss).
#pragma once
#include <string>

#include "base/recipe.h"
#include "train/generations.h"

namespace cairn::cli {

train::LossPolicy loss_policy(base::Recipe recipe);

// Refuses train.on_loss where no agent can start all ranks of the run again. `unattended`: why there is no agent; empty: there is one.
void check_loss_policy(base::Recipe recipe, const std::string& unattended);

}  // namespace cairn::cli
