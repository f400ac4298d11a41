#pragma once
#include <cstddef>

#include <ATen/core/Tensor.h>

#include "model/model.h"
#include "optim/optimizer.h"

namespace cairn::train {

struct Job;

// A parameter, or this rank's slice of one, as the optimizer sees it.
optim::ParameterPiece make_piece(const model::Parameter& of, at::Tensor parameter, at::Tensor gradient);

// Writes the initial values of one parameter into `whole`, a tensor of the full shape. They depend on train.seed and the name only.
void start_values(const Job& job, size_t parameter, const at::Tensor& whole);

}  // namespace cairn::train
