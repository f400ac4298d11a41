#include "planner/rank_bytes.h"

#include <algorithm>

#include "model/model.h"
#include "parallel/layout/model_shard.h"
#include "parallel/state/parameter_store.h"

namespace cairn::planner {

RankBytes rank_bytes(const model::Model& model, const parallel::Plan& plan, const StepRules& rules, int rank, int64_t kept_bytes) {
  const parallel::ModelShard share = parallel::model_shard(model, plan, rank);
  const parallel::ShardUnitRules cut = parallel::shard_unit_rules(plan, rules.whole_parameters, rules.bucket_bytes / 4);
  const std::vector<parallel::ShardUnit> units = parallel::make_shard_units(model, share.layout, cut);
  const std::vector<int> keepers = plan.zero > 0 ? plan.mesh.peers_along(rank, parallel::sharding_axes(plan)) : std::vector<int>{rank};
  const auto me = static_cast<int>(std::find(keepers.begin(), keepers.end(), rank) - keepers.begin());
  std::vector<bool> chosen;
  for (size_t i = 0; i < share.parameters.size(); ++i)
    chosen.push_back((rules.trained.empty() || rules.trained[i]) && share.parameters[i].here);
  int64_t kept = 0, trained = 0;
  for (const parallel::ShardUnit& unit : units) kept += unit.part_of(me).length();
  RankBytes bytes;
  for (const parallel::ShardUnit& unit : parallel::select_units(share.layout, units, chosen)) {
    bytes.trained_elements += unit.part_of(me).length();
    trained += unit.elements;
  }
  const int64_t read_bytes = plan.precision == "bf16" ? 2 : 4;
  const bool gathers = plan.zero == 3 && keepers.size() > 1, in_place = !gathers && kept_bytes == read_bytes;
  bytes.parameters = (gathers ? 0 : share.layout.elements * read_bytes) + (in_place ? 0 : kept * kept_bytes);
  bytes.gradients = 4 * (plan.zero >= 2 && keepers.size() > 1 ? bytes.trained_elements : trained);
  return bytes;
}

}  // namespace cairn::planner
