#include "parallel/plan.h"

#include <algorithm>
#include <variant>

#include "base/json.h"

namespace cairn::parallel {

mesh::Placement placement_of(const Plan& plan, const std::string& parameter) {
  const auto found = plan.placements.find(parameter);
  return found == plan.placements.end() ? mesh::Placement{} : found->second;
}

int64_t compute_bytes(const Plan& plan) { return plan.precision == "bf16" ? 2 : 4; }

bool islands_step_separately(const Plan& plan) {
  return plan.sync_facts.local_steps && (plan.mesh.extent("island") > 1 || plan.islands > 1);
}

bool places_experts(const Plan& plan) {
  return plan.mesh.extent("ep") > 1 && std::any_of(plan.placements.begin(), plan.placements.end(), [](const auto& one) {
           return !std::holds_alternative<mesh::Replicate>(one.second.on("ep"));
         });
}

std::vector<std::string> model_axes(const Plan& plan) {
  std::vector<std::string> axes{"pp", "tp"};
  if (places_experts(plan)) axes.emplace_back("ep");
  return axes;
}

std::vector<int> step_group_of(const Plan& plan, int rank) {
  std::vector<int> ranks = plan.mesh.members();
  if (!islands_step_separately(plan)) return ranks;
  const int island = plan.mesh.coordinate(rank, "island");
  std::erase_if(ranks, [&](int other) { return plan.mesh.coordinate(other, "island") != island; });
  return ranks;
}

std::string context_form(const Plan& plan) {
  return plan.context.automatic ? kAutomaticContext : model::to_string(plan.context.method, plan.mesh.extent("cp"));
}

std::string to_json(const Plan& plan) {
  base::OrderedJson axes = base::OrderedJson::object(), placements = base::OrderedJson::object();
  for (const mesh::Axis& axis : plan.mesh.axes) axes[axis.name] = axis.size;
  if (!plan.mesh.parts.empty()) axes = mesh::to_string({plan.mesh.axes, {}, plan.mesh.parts});
  for (const auto& [name, placement] : plan.placements) placements[name] = mesh::to_string(placement);
  base::OrderedJson json = {{"mesh", axes},      {"ranks", plan.mesh.ranks},        {"placements", placements},
                            {"sync", plan.sync}, {"micro_batch", plan.micro_batch}, {"precision", plan.precision}};
  if (plan.micro_batches > 0) json["micro_batches"] = plan.micro_batches;
  if (plan.zero > 0) json["zero"] = plan.zero;
  if (plan.partition != Partition::slices) json["partition"] = base::enum_name(kPartitionNames, plan.partition);
  const bool along_cp = std::any_of(plan.mesh.axes.begin(), plan.mesh.axes.end(), [](const mesh::Axis& axis) { return axis.name == "cp"; });
  if (along_cp || plan.context != ContextRule{}) json["context"] = {{"form", context_form(plan)}, {"balanced", plan.context.balanced}};
  if (plan.context.linear != ContextRule{}.linear) json["context"]["linear"] = base::enum_name(kLinearFormNames, plan.context.linear);
  if (plan.context.scan_blocks > 0) json["context"]["scan_blocks"] = plan.context.scan_blocks;
  if (plan.context.state_dtype != ContextRule{}.state_dtype)
    json["context"]["state_dtype"] = base::enum_name(kStateDtypeNames, plan.context.state_dtype);
  if (!plan.stage_blocks.empty() || !plan.schedule.empty())
    json["pipeline"] = {{"schedule", plan.schedule}, {"stage_blocks", plan.stage_blocks}, {"rank_of_stage", plan.rank_of_stage}};
  if (plan.registers > 0) json["pipeline"]["registers"] = plan.registers;
  if (plan.routing != Routing::fixed) json["pipeline"]["routing"] = base::enum_name(kRoutingNames, plan.routing);
  return base::pretty(json) + "\n";
}

}  // namespace cairn::parallel
