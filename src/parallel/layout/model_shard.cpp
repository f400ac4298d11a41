#include "parallel/layout/model_shard.h"

#include <algorithm>
#include <map>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "model/named_parameters.h"

namespace cairn::parallel {
namespace {

std::vector<int> stages_of(const Plan& plan, int rank) {
  const int place = plan.mesh.coordinate(rank, "pp");
  std::vector<int> stages;
  for (size_t stage = 0; stage < plan.rank_of_stage.size(); ++stage)
    if (plan.rank_of_stage[stage] == place) stages.push_back(static_cast<int>(stage));
  return plan.rank_of_stage.empty() ? std::vector<int>{0} : stages;
}

// Which parameters a rank's blocks use. Parameters that no block uses stay with the first stage.
std::vector<bool> named_by(const model::Model& model, const Plan& plan, const std::vector<int>& stages) {
  const auto mark = [&](BlockRange range, std::vector<bool>& into, bool value) {
    for (size_t i = range.first; i < range.last; ++i)
      for (const mesh::ParamId& id : model::named_parameters(model.blocks()[i]->card()))
        for (int32_t k = id.first; k < id.first + id.count; ++k) into[static_cast<size_t>(k)] = value;
  };
  std::vector<bool> named(model.parameters().size(), false);
  if (std::find(stages.begin(), stages.end(), 0) != stages.end()) {
    named.assign(named.size(), true);
    mark({0, model.blocks().size()}, named, false);
  }
  for (const int stage : stages) mark(blocks_of_stage(plan, stage, model.blocks().size()), named, true);
  return named;
}

}  // namespace

BlockRange blocks_of_stage(const Plan& plan, int stage, size_t blocks) {
  if (plan.stage_blocks.empty()) return {0, blocks};
  size_t first = 0;
  for (int i = 0; i < stage; ++i) first += static_cast<size_t>(plan.stage_blocks[static_cast<size_t>(i)]);
  return {first, first + static_cast<size_t>(plan.stage_blocks[static_cast<size_t>(stage)])};
}

std::vector<int> rank_of_blocks(const Plan& plan, size_t blocks) {
  std::vector<int> ranks(blocks, 0);
  for (size_t stage = 0; stage < plan.rank_of_stage.size(); ++stage) {
    const BlockRange range = blocks_of_stage(plan, static_cast<int>(stage), blocks);
    std::fill(ranks.begin() + static_cast<std::ptrdiff_t>(range.first), ranks.begin() + static_cast<std::ptrdiff_t>(range.last),
              plan.rank_of_stage[stage]);
  }
  return ranks;
}

ModelShard model_shard(const model::Model& model, const Plan& plan, int rank) {
  const std::vector<int> model_ranks = plan.mesh.peers_along(rank, model_axes(plan));
  std::map<int, std::vector<bool>> named;
  std::map<int, std::vector<mesh::AxisCoordinate>> axis_coordinates;
  for (const int other : model_ranks) {
    named[other] = named_by(model, plan, stages_of(plan, other));
    axis_coordinates[other] = plan.mesh.axis_coordinates(other);
  }
  ModelShard shard;
  shard.stages = stages_of(plan, rank);
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const model::Parameter& parameter = model.parameters()[i];
    const mesh::Placement placement = placement_of(plan, parameter.name);
    ParameterShard& one = shard.parameters.emplace_back();
    one.here = named[rank][i];
    one.local_shard = mesh::local_shard(placement, axis_coordinates[rank], parameter.shape);
    for (const int other : model_ranks)
      if (named[other][i] && (other == rank || mesh::local_shard(placement, axis_coordinates[other], parameter.shape) == one.local_shard))
        one.copies.push_back(other);
    shard.layout.append(parameter.name, one.here ? one.local_shard.local_shape() : std::vector<int64_t>{0});
  }
  return shard;
}

}  // namespace cairn::parallel
