#pragma once
#include <cstdint>
#include <vector>

#include "mesh/flat_layout.h"
#include "mesh/local_shard.h"
#include "parallel/plan.h"

namespace cairn::model {
class Model;
struct Parameter;
}  // namespace cairn::model

namespace cairn::parallel {

// What one rank works with of one parameter.
struct ParameterShard {
  bool here = true;              // a stage that this rank runs uses it
  mesh::LocalShard local_shard;  // what of the whole: dense, so its local tensor has the shape holding.local_shape()
  std::vector<int> copies;  // ranks that hold just this beside it in the same replica, itself included: its gradient is a sum over them
  bool operator==(const ParameterShard&) const = default;
};

// What one rank works with of a model under a plan: parts of parameters, the blocks of its stages. A value that every rank can tell for
// every other.
struct ModelShard {
  std::vector<ParameterShard> parameters;  // by place in the model
  mesh::FlatLayout layout;                 // of what is here, in the model's order; a parameter that is not here has no elements
  std::vector<int> stages;                 // of the pipeline, that this rank runs, in order
};

ModelShard model_shard(const model::Model& model, const Plan& plan, int rank);

// Which blocks a stage runs: [first, last).
struct BlockRange {
  size_t first = 0, last = 0;
};
BlockRange blocks_of_stage(const Plan& plan, int stage, size_t blocks);
// Which rank along pp runs each of so many blocks.
std::vector<int> rank_of_blocks(const Plan& plan, size_t blocks);

// What of a whole tensor a holding has, put together; a view where it is one piece.
at::Tensor cut_out(const at::Tensor& whole, const mesh::LocalShard& local_shard);
// And back: writes a holding's local tensor into its places of the whole one.
void put_back(const at::Tensor& whole, const mesh::LocalShard& local_shard, const at::Tensor& local);

}  // namespace cairn::parallel
