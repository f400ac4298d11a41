#include "train/parameter_piece.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "train/job.h"

namespace cairn::train {

optim::ParameterPiece make_piece(const model::Parameter& of, at::Tensor parameter, at::Tensor gradient) {
  return {.name = of.name,
          .parameter = std::move(parameter),
          .gradient = std::move(gradient),
          .decays = of.decays(),
          .hidden = of.is_hidden_matrix(),
          .fan_in_fan_out = of.fan_in_fan_out,
          .on_hyperboloid = of.on_hyperboloid};
}

optim::ParameterPiece make_piece(const model::Parameter& of, const parallel::ParameterSlice& slice, const mesh::LocalShard& local_shard) {
  optim::ParameterPiece piece = make_piece(of, slice.value, slice.gradient);
  bool follows = true;  // the shard's elements follow each other in the parameter
  int64_t first = 0;    // of them, in the parameter
  for (size_t dim = 0; dim < of.shape.size(); ++dim) {
    const std::vector<mesh::Interval>& held = local_shard.dims[dim];
    if (held.empty()) return piece;  // it has no elements
    first = first * of.shape[dim] + held.front().begin;
    follows = follows && held.size() == 1 && (dim == 0 || held.front().length() == of.shape[dim]);
  }
  piece.first_index = slice.elements.begin + (follows ? first : 0);
  piece.shard = follows ? 0 : 1 + first;
  return piece;
}

std::shared_ptr<const optim::TensorShard> tensor_shard(comm::World& world, const parallel::Plan& plan, const model::Parameter& of) {
  const mesh::Placement placement = parallel::placement_of(plan, of.name);
  const char* axis = std::holds_alternative<mesh::Replicate>(placement.on("ep")) ? "tp" : "ep";  // experts are whole along tp
  const std::vector<int> ranks = plan.mesh.peers(world.rank(), axis);
  if (ranks.size() == 1) return nullptr;
  std::vector<mesh::LocalShard> shards;
  for (const int rank : ranks) shards.push_back(mesh::local_shard(placement, plan.mesh.axis_coordinates(rank), of.shape));
  if (std::all_of(shards.begin(), shards.end(), [&](const mesh::LocalShard& one) { return one.local_shape() == of.shape; })) return nullptr;
  for (const mesh::LocalShard& one : shards)
    if (one.boxes().empty())
      base::fail_input("mesh.{} = {}: a rank would have no part of {}, which the optimizer updates together: use fewer ranks along {}",
                       axis, ranks.size(), of.name, axis);
  return std::make_shared<const optim::TensorShard>(optim::TensorShard{world.group(ranks), of.shape, std::move(shards)});
}

void start_values(const Job& job, size_t parameter, const at::Tensor& whole) {
  model::initialize_parameter(job.engine.model->parameters()[parameter], whole.view({-1}),
                              base::Random(static_cast<uint64_t>(job.config.settings.train.seed)));
}

}  // namespace cairn::train
