#include "cli/plan_infer.h"

#include "base/check.h"
#include "model/model.h"
#include "planner/auto_tp.h"
#include "planner/infer.h"
#include "planner/model_graph.h"
#include "train/planned.h"

namespace cairn::cli {
namespace {

// The mesh without axes of one rank.
mesh::Mesh axes_that_count(const mesh::Mesh& mesh) {
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

}  // namespace

std::string inferred_placements(const train::Planned& p, const std::string& how, bool json) {
  const mesh::Mesh mesh = axes_that_count(p.plan.mesh);
  int64_t replicas = 1;
  for (const std::string& axis : parallel::kSampleAxes) replicas *= mesh.extent(axis);
  // One micro-batch on every rank.
  const planner::OpGraph graph = planner::graph_of(planner::describe(*p.task.model),
                                                   {.batch = p.plan.micro_batch * p.batch.rows * replicas, .length = p.batch.length});
  planner::InferOptions options;
  if (how == "rules")
    for (const planner::Ruled& one : planner::auto_tp(graph, mesh.extent("tp"), {}, planner::OddHeads::replicate)) {
      planner::Forms forms;
      for (const mesh::Axis& axis : mesh.axes) forms.push_back(axis.name == "tp" ? planner::form_of(one.how) : planner::kReplicate);
      options.fixed[one.parameter] = forms;
    }
  planner::Boxing boxing(mesh, {});
  const planner::Placed placed = planner::infer(graph, boxing, options);
  return json ? planner::to_json(placed) : planner::describe(placed);
}

}  // namespace cairn::cli
