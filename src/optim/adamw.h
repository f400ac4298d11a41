#pragma once
#include <memory>
#include <vector>

#include "optim/optimizer.h"

namespace cairn::optim {

// Adam with decoupled weight decay; two moments per element. Muon uses it for everything but hidden matrices.
std::unique_ptr<Optimizer> make_adamw(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory = nullptr);

}  // namespace cairn::optim
