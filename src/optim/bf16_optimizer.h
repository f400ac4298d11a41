#pragma once
#include <memory>
#include <vector>

#include "optim/optimizer.h"

namespace cairn::base {
struct Random;
}

namespace cairn::optim {

// The rule called options.kind over parameters that exist in bf16 only (train.parameters = bf16), without an fp32 master copy.
//
// Each update is computed in fp32, by the rule itself or on an fp32 copy of one piece, and written back by stochastic rounding: an update
// smaller than the spacing of bf16 is lost or doubled at random, and right on average. `random`, the parameter's name, the element's index
// in it and the number of the update decide the direction, so it is the same on every rank, with ZeRO and after a resume; tensor-parallel
// shards that are no range of the parameter's elements have numbers of their own. optim.rounding = "nearest" rounds to nearest instead.
std::unique_ptr<Optimizer> make_bf16_optimizer(const OptimOptions& options, std::vector<ParameterPiece> pieces, const base::Random& random,
                                               StateMemory* memory = nullptr);

}  // namespace cairn::optim
