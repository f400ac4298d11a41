#pragma once
#include <cstddef>
#include <memory>

#include <ATen/core/Tensor.h>

#include "model/model.h"
#include "optim/optimizer.h"
#include "parallel/state/parameter_store.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// A whole parameter as the optimizer sees it.
optim::ParameterPiece make_piece(const model::Parameter& of, at::Tensor parameter, at::Tensor gradient);

// This rank's slice of a parameter. `local_shard`: what of the whole its tensor-parallel shard is.
optim::ParameterPiece make_piece(const model::Parameter& of, const parallel::ParameterSlice& slice, const mesh::LocalShard& local_shard);

// How the ranks along tp hold a parameter, or those along ep where it has experts; null: each has all of it.
std::shared_ptr<const optim::TensorShard> tensor_shard(comm::World& world, const parallel::Plan& plan, const model::Parameter& of);

// Writes the initial values of one parameter into `whole`, a tensor of the full shape. They depend on train.seed and the name only.
void start_values(const Job& job, size_t parameter, const at::Tensor& whole);

}  // namespace cairn::train
