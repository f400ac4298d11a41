#pragma once
#include <memory>

#include "model/decoder/fp8_linear.h"
#include "parallel/plan.h"
#include "train/settings.h"

namespace cairn::train {

// The linear layers of the model that run in fp8 (train.fp8, train.fp8_layers); null if there are none. Refuses layers whose width, after
// tensor parallelism has split it, is no multiple that fp8 kernels support.
std::unique_ptr<model::Fp8LinearLayers> fp8_linear_layers(const Settings& settings, const model::Model& model, const parallel::Plan& plan);

}  // namespace cairn::train
