#pragma once
#include <memory>
#include <vector>

#include "optim/optimizer.h"

namespace cairn::optim {

// Muon (Jordan et al., kellerjordan.github.io/posts/muon): the momentum of a hidden matrix, made orthogonal, is its step. What is no
// hidden matrix is left to AdamW. One number kept per element of a hidden matrix, two elsewhere.
std::unique_ptr<Optimizer> make_muon(const OptimOptions& options, std::vector<ParameterPiece> pieces);

}  // namespace cairn::optim
