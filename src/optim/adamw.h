#pragma once
#include <memory>
#include <vector>

#include "optim/optimizer.h"

namespace cairn::optim {

// Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101): two moments per element, element by element.
std::unique_ptr<Optimizer> make_adamw(const OptimOptions& options, std::vector<ParameterPiece> pieces);

}  // namespace cairn::optim
