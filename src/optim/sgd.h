#pragma once
#include <memory>
#include <vector>

#include "optim/optimizer.h"

namespace cairn::optim {

// Stochastic gradient descent with momentum b = mu b + g, plain or Nesterov's; one number kept per element, none without momentum.
std::unique_ptr<Optimizer> make_sgd(const OptimOptions& options, std::vector<ParameterPiece> pieces);

}  // namespace cairn::optim
