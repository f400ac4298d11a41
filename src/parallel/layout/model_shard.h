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

// What one rank has of one parameter.
struct ParameterShard {
  bool here = true;              // a stage that this rank runs uses it
  mesh::LocalShard local_shard;  // what of the whole: dense, so its local tensor has the shape holding.local_shape()
  std::vector<int> copies;       // ranks of the same replica that hold the same, itself included: the gradient is a sum over them
  bool operator==(const ParameterShard&) const = default;
};

// What one rank has of a model under a plan (before ZeRO shards it further): its parts of parameters, and its pipeline stages. A pure
// function of model, plan and rank: every rank can compute it for every other.
struct ModelShard {
  std::vector<ParameterShard> parameters;  // by parameter of the model
  mesh::FlatLayout layout;  // of the rank's local tensors, in the model's order; a parameter that is not here has no elements
  std::vector<int> stages;  // pipeline stages that this rank runs, ascending
};

ModelShard model_shard(const model::Model& model, const Plan& plan, int rank);

// The blocks of a stage: [first, last).
struct BlockRange {
  size_t first = 0, last = 0;
};
BlockRange blocks_of_stage(const Plan& plan, int stage, size_t blocks);
// The rank along pp of each block.
std::vector<int> rank_of_blocks(const Plan& plan, size_t blocks);

using mesh::cut_out;
using mesh::put_back;

}  // namespace cairn::parallel
