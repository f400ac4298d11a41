#include "train/inferred_placements.h"

#include <algorithm>

#include "base/check.h"
#include "model/model.h"
#include "model/name_pattern.h"
#include "parallel/layout/place_overrides.h"
#include "planner/graph/model_graph.h"
#include "planner/sbp/infer.h"
#include "train/planned.h"

namespace cairn::train {
namespace {

// The mesh without axes of one rank.
mesh::Mesh nontrivial_axes(const mesh::Mesh& mesh) {
  mesh::Mesh some;
  for (const mesh::Axis& axis : mesh.axes) {
    if (axis.size == 1) continue;
    if (axis.name == "pp" || axis.name == "cp" || axis.name == "ep")
      base::fail_input("--infer places tensors along island, dp, shard and tp, and mesh.{} is {}: leave it out", axis.name, axis.size);
    some.axes.push_back(axis);
  }
  if (some.axes.empty()) base::fail_input("--infer: there is one rank, and nothing to place: add --mesh, as in --mesh dp=2,tp=2");
  return some;
}

planner::OpGraph graph_of_pass(const Planned& p, const mesh::Mesh& mesh) {
  int64_t replicas = 1;
  for (const std::string& axis : parallel::kSampleAxes) replicas *= mesh.extent(axis);
  planner::OpGraph graph = planner::graph_of(planner::describe(*p.task.model),
                                             {.batch = p.plan.micro_batch * p.batch.rows * replicas, .length = p.batch.length});
  const std::vector<model::Parameter>& parameters = p.task.model->parameters();
  for (planner::GraphTensor& tensor : graph.tensors) {
    if (tensor.kind == planner::GraphTensor::Kind::value && p.plan.precision == "bf16") tensor.item_bytes = 2;
    if (tensor.kind != planner::GraphTensor::Kind::parameter || p.rules.trained.empty()) continue;
    for (size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].name == tensor.name) tensor.differentiable = p.rules.trained[i];
  }
  return graph;
}

// The placements of these parameters along tp; everything else is free.
std::map<std::string, planner::NdSbp> fixed_by(const planner::Overrides& overrides, const model::Model& model, const mesh::Mesh& mesh) {
  std::map<std::string, planner::NdSbp> fixed;
  for (const model::Parameter& parameter : model.parameters())
    for (const planner::PlacementOverride& one : overrides) {
      if (!model::matches(one.pattern, parameter.name)) continue;
      planner::NdSbp& nd_sbp = fixed[parameter.name];
      for (const mesh::Axis& axis : mesh.axes) nd_sbp.push_back(axis.name == "tp" ? one.sbp : planner::kReplicate);
      break;
    }
  return fixed;
}

}  // namespace

InferredPlacements infer_placements(const Planned& p, bool by_rules, const planner::CostModel& cost_model, planner::Overrides overrides) {
  const mesh::Mesh mesh = nontrivial_axes(p.plan.mesh);
  const planner::OpGraph graph = graph_of_pass(p, mesh);
  planner::Boxing boxing(mesh, cost_model);
  for (const auto& [name, form] : parallel::matched_places(p.settings.layout.place, *p.task.model))
    overrides.push_back({name, planner::parse_sbp(form)});
  const std::map<std::string, planner::NdSbp> ruled = planner::sbp_by_rules(graph, mesh, overrides);  // refuses unknown names
  InferredPlacements found;
  found.placed = planner::infer(graph, boxing, {.fixed = fixed_by(overrides, *p.task.model, mesh), .data_parallel = true});
  found.cheapest = found.placed.cost;
  found.cheapest_bytes = found.placed.bytes;
  if (by_rules) found.placed = planner::infer(graph, boxing, {.fixed = ruled, .data_parallel = true});
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    if (graph.tensors[t].kind == planner::GraphTensor::Kind::parameter)
      found.parameters[graph.tensors[t].name] = planner::placement_of(graph.tensors[t], found.placed.tensors[t], mesh);
  return found;
}

}  // namespace cairn::train
