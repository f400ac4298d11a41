#include "cli/text/expert_placement.h"

#include <fmt/format.h>

#include "base/checksum.h"
#include "kernels/aten.h"
#include "model/experts/moe_block.h"
#include "planner/experts/record_routing.h"

namespace cairn::cli {

planner::PlacementTarget placement_target(const snapshot::Pretrained& opened, const model::Model& model, int ranks) {
  const planner::ExpertLayers experts = planner::expert_layers(model);
  base::Checksum sum;
  const std::string config = model.config_json();
  sum.add(std::as_bytes(std::span(config)));
  for (const auto& block : model.blocks()) {
    if (!model::routed_block(*block)) continue;
    for (const model::BlockOp& operation : block->card().operations) {
      if (operation.name != "router") continue;
      const at::Tensor router = opened.view(model.parameters()[static_cast<size_t>(operation.parameters.front().first)].name);
      if (!router.defined()) continue;
      const at::Tensor whole = router.contiguous();
      sum.add({static_cast<const std::byte*>(whole.const_data_ptr()), static_cast<size_t>(whole.nbytes())});
    }
  }
  return {.model = fmt::format("{:016x}", sum.value()),
          .mesh = fmt::format("ep={}", ranks),
          .layers = experts.layers,
          .experts = experts.experts,
          .ranks = ranks};
}

parallel::ExpertTables read_expert_tables(const std::string& file, const planner::PlacementTarget& target) {
  const planner::ExpertPlacement placement = planner::load_placement(file, target);
  parallel::ExpertTables tables;
  for (int layer = 0; layer < placement.layers(); ++layer) tables.push_back(placement.table(layer));
  return tables;
}

}  // namespace cairn::cli
