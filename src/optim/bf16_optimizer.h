#pragma once
#include <memory>
#include <vector>

#include "optim/optimizer.h"

namespace cairn::base {
struct Random;
}

namespace cairn::optim {

// The rule that options.kind names, over parameters that are kept in bf16 alone: each update is made in fp32 (by the
// rule itself, or on an fp32 copy of one piece) and written back by stochastic rounding, so that updates below the spacing of bf16 are kept
// on the average. Which way an element goes is decided by `random`, the piece's name and the update's number: the same on every rank and
// after a resume. options.rounding may ask for the nearest instead.
std::unique_ptr<Optimizer> make_bf16_optimizer(const OptimOptions& options, std::vector<ParameterPiece> pieces, const base::Random& random);

}  // namespace cairn::optim
