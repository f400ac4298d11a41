#include "cli/train_recipe.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "cli/environment.h"
#include "cli/launch/resumed_recipe.h"
#include "cli/recipe_overrides.h"
#include "mesh/mesh.h"
#include "parallel/layout/plan_file.h"

namespace cairn::cli {
namespace {

base::Recipe parse_decided(const RunDecision& decision) {
  if (!decision.recipe) return {};
  return decision.saved ? read_saved_recipe(*decision.recipe, decision.folder) : base::Recipe::parse(*decision.recipe);
}

}  // namespace

RunRequest request_of(const TrainArguments& a) { return {.out = a.out, .resume = a.resume, .recipe = a.recipe, .data = a.data}; }

RunDecision decide(const TrainArguments& a, const RunDirectory& run) {
  RunDecision decision{.run = run, .day = day_of_run(run.path, run.resume)};
  if (!a.recipe.empty()) {
    decision.recipe = read_recipe_file(a.recipe);
  } else if (run.resume) {
    decision.recipe = base::Recipe::File::read(run.path / "recipe.toml");
    decision.saved = true;
    decision.folder = start_folder(run.path);
  }
  return decision;
}

TrainArguments with_ranks_of_mesh(TrainArguments a) {
  if (a.nproc_given || a.nnodes > 1) return a;
  for (const mesh::Axis& axis : parse_mesh_axes(a.mesh))
    if (axis.name != "shard") a.nproc *= axis.size;
  if (!a.mesh.empty() && a.islands > 0 && a.island < 0) a.nproc *= a.islands;
  return a;
}

base::Recipe make_recipe(const TrainArguments& a, const RunDecision& decision) {
  return apply_overrides(parse_decided(decision), {.data = a.data,
                                                   .mesh = a.mesh,
                                                   .sets = a.sets,
                                                   .seed = a.seed,
                                                   .islands = a.islands,
                                                   .sync = a.sync,
                                                   .island = a.island,
                                                   .founders = a.founders,
                                                   .meet = a.meet,
                                                   .listen = a.listen});
}

std::shared_ptr<const parallel::Plan> read_given_plan(TrainArguments& a) {
  if (a.plan.empty()) return nullptr;
  if (!a.mesh.empty()) base::fail_input("--mesh {} --plan {}: the plan says how ranks are arranged: leave out --mesh", a.mesh, a.plan);
  auto plan = std::make_shared<parallel::Plan>(parallel::read_plan(a.plan));
  if (!a.nproc_given && a.nnodes <= 1) a.nproc = plan->mesh.size();
  return plan;
}

int islands_of(const TrainArguments& a) {
  if (a.islands > 0) return a.islands;
  for (const mesh::Axis& axis : parse_mesh_axes(a.mesh))
    if (axis.name == "island") return axis.size;
  const auto exported = variable("CAIRN_ISLANDS");
  return exported ? std::stoi(*exported) : 1;
}

std::string fingerprint(const TrainArguments& a) {
  std::string all;
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) all += fmt::format("{}{} {}", all.empty() ? "" : " ", option, value);
  };
  add("--data", a.data);
  add("--seed", a.seed >= 0 ? std::to_string(a.seed) : "");
  add("--mesh", a.mesh);
  add("--channels", a.channels > 1 ? std::to_string(a.channels) : "");
  add("--islands", a.islands > 0 ? std::to_string(a.islands) : "");
  add("--sync", a.sync);
  add("--island", a.island >= 0 ? std::to_string(a.island) : "");
  if (!a.plan.empty()) {
    const std::string text = parallel::to_json(parallel::read_plan(a.plan));
    add("--plan", fmt::format("{:016x}", base::checksum(text)));
  }
  add("--device", a.device);
  add("--transport", a.transport);
  for (const std::string& set : a.sets) add("--set", set);
  return all;
}

TrainArguments with_free_replicas(TrainArguments a) {
  std::string mesh;
  for (const mesh::Axis& axis : parse_mesh_axes(a.mesh))
    if (axis.name != "dp") mesh += fmt::format("{}{}={}", mesh.empty() ? "" : ",", axis.name, axis.size);
  a.mesh = mesh;
  a.sets.emplace_back("mesh.dp=0");
  return a;
}

TrainArguments without_recipe_file(TrainArguments a) {
  a.recipe.clear();
  return a;
}

}  // namespace cairn::cli
