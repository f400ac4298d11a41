#include "cli/commands/plan_infer.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/text.h"
#include "cli/launch/links.h"
#include "comm/link_model.h"
#include "model/model.h"
#include "planner/graph/model_graph.h"
#include "planner/sbp/infer.h"
#include "planner/tensor_parallel/auto_tp.h"
#include "train/planned.h"

namespace cairn::cli {
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

std::pair<std::string, std::string> split_assignment(const std::string& option, const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) base::fail_input("{} {}: write NAME=VALUE", option, text);
  return {text.substr(0, equals), text.substr(equals + 1)};
}

planner::CostModel cost_model_of(const std::vector<std::string>& links) {
  planner::CostModel cost_model;
  for (const std::string& text : links) {
    const auto [axis, value] = split_assignment("--links", text);
    const auto link = parse_links(value);
    if (!link) base::fail_input("--links {}: write AXIS=LATENCY,BANDWIDTH, as in dp=20ms,100Mbit", text);
    cost_model.links[axis] = {std::chrono::duration<double>(link->latency).count(), link->bytes_per_s};
  }
  return cost_model;
}

planner::OpGraph graph_of_pass(const train::Planned& p, const mesh::Mesh& mesh) {
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

}  // namespace

Inferred inferred_placements(const train::Planned& p, const InferRequest& request) {
  const mesh::Mesh mesh = nontrivial_axes(p.plan.mesh);
  const planner::OpGraph graph = graph_of_pass(p, mesh);
  planner::Boxing boxing(mesh, cost_model_of(request.links));
  planner::Overrides overrides;
  for (const std::string& text : request.places) {
    const auto [pattern, form] = split_assignment("--place", text);
    overrides.push_back({pattern, planner::parse_sbp(form)});
  }
  const planner::PlacedGraph free = planner::infer(graph, boxing);
  const bool rules = request.how == "rules";
  const planner::PlacedGraph placed =
      rules ? planner::infer(graph, boxing, {.fixed = planner::sbp_by_rules(graph, mesh, overrides)}) : free;
  std::string text = planner::describe(placed);
  if (rules && placed.cost > 1.5 * free.cost)
    text += fmt::format("weights so placed cost {:.1f} times what the cheapest placement does ({}): --infer free shows it\n",
                        placed.cost / free.cost, base::human_bytes(free.bytes));
  text +=
      "of one pass and its gradients, one micro-batch on every rank. cairn train runs the placements that `cairn plan --explain` shows.\n";
  Inferred inferred{text, planner::to_json(placed), {}};
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    if (graph.tensors[t].kind == planner::GraphTensor::Kind::parameter)
      inferred.parameters[graph.tensors[t].name] = planner::placement_of(graph.tensors[t], placed.tensors[t], mesh);
  return inferred;
}

}  // namespace cairn::cli
