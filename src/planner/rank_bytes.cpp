#include "planner/rank_bytes.h"

#include <algorithm>

#include "model/model.h"
#include "parallel/layout/model_shard.h"
#include "parallel/state/parameter_store.h"

namespace cairn::planner {

RankBytes rank_bytes(const model::Model& model, const parallel::Plan& plan, const StepRules& rules, int rank, int64_t master_bytes) {
  const parallel::ModelShard shard = parallel::model_shard(model, plan, rank);
  const parallel::ShardUnitRules cut = parallel::shard_unit_rules(plan, rules.whole_parameters, rules.bucket_bytes / 4);
  const std::vector<parallel::ShardUnit> units = parallel::make_shard_units(model, shard.layout, cut);
  const std::vector<int> shard_ranks = plan.zero > 0 ? plan.mesh.peers_along(rank, parallel::sharding_axes(plan)) : std::vector<int>{rank};
  const auto me = static_cast<int>(std::find(shard_ranks.begin(), shard_ranks.end(), rank) - shard_ranks.begin());
  std::vector<bool> chosen;
  for (size_t i = 0; i < shard.parameters.size(); ++i)
    chosen.push_back((rules.trained.empty() || rules.trained[i]) && shard.parameters[i].here);
  int64_t kept = 0, trained = 0;
  for (const parallel::ShardUnit& unit : units) kept += unit.part_of(me).length();
  RankBytes bytes;
  for (const parallel::ShardUnit& unit : parallel::select_units(shard.layout, units, chosen)) {
    bytes.trained_elements += unit.part_of(me).length();
    trained += unit.elements;
  }
  const int64_t compute_bytes = parallel::compute_bytes(plan);
  const bool gathers = plan.zero == 3 && shard_ranks.size() > 1, in_place = !gathers && master_bytes == compute_bytes;
  bytes.parameters = (gathers ? 0 : shard.layout.elements * compute_bytes) + (in_place ? 0 : kept * master_bytes);
  bytes.gradients = 4 * (plan.zero >= 2 && shard_ranks.size() > 1 ? bytes.trained_elements : trained);
  return bytes;
}

}  // namespace cairn::planner
