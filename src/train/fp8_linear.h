#pragma once
#include <memory>

#include "model/decoder/fp8_linear.h"
#include "parallel/plan.h"
#include "train/settings.h"

namespace cairn::train {

// Which products of a model are in eight bits (train.fp8, train.fp8_layers); null: none. Refuses widths, as the plan cuts them, that codes
// cannot have.
std::unique_ptr<model::Fp8LinearLayers> fp8_linear_layers(const Settings& settings, const model::Model& model, const parallel::Plan& plan);

}  // namespace cairn::train
