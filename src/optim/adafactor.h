#pragma once
#include <memory>
#include <vector>

#include "optim/optimizer.h"

namespace cairn::optim {

// Adafactor (Shazeer and Stern, arXiv:1804.04235): the second moment of a matrix is kept as the means of its rows and columns, that
// of anything else by element. Updates are clipped by their root mean square; a first moment is kept only where asked for.
std::unique_ptr<Optimizer> make_adafactor(const OptimOptions& options, std::vector<ParameterPiece> pieces);

}  // namespace cairn::optim
