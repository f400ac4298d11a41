#pragma once
#include <memory>

#include "train/between_steps.h"

namespace cairn::parallel {
struct Plan;
}

namespace cairn::train {

struct Settings;

// Sparse spectral training between steps; null without model.spectral.rank. Collective.
std::unique_ptr<BetweenSteps> make_spectral_rounds(Job& job, comm::World& world);

// Refuses values of model.spectral.* that contradict each other or the rest of the recipe.
void check_spectral(const Settings& settings, const parallel::Plan& plan);

}  // namespace cairn::train
