#include "train/build/make_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "parallel/layout/make_plan.h"
#include "sync/needs.h"
#include "train/build/check_settings.h"
#include "train/given_plan.h"
#include "train/settings.h"

namespace cairn::train {
namespace {

// Ranks that have samples of their own, over all islands.
int64_t data_ranks_of(const parallel::Plan& plan) {
  int64_t ranks = plan.islands;
  for (const std::string& axis : parallel::kSampleAxes) ranks *= plan.mesh.extent(axis);
  return ranks;
}

// Why micro-batches cannot be routed between the islands' pipelines; empty: they can.
std::string why_no_routing(const Settings& settings, const parallel::Plan& plan) {
  if (!parallel::islands_step_separately(plan))
    return "is for islands that step separately (mesh.island and sync.island.kind): elsewhere all replicas are identical";
  if (plan.islands > 1) return "remote islands do not exchange activations: use mesh.island in one run";
  if (!plan.mesh.parts.empty()) return "needs islands with the same layout";
  if (settings.island.outer.pace == sync::Pace::own) return "islands work on each step together: leave sync.island.pace out";
  if (const int64_t ranks = data_ranks_of(plan); settings.train.global_batch % ranks != 0)
    return fmt::format("needs as many samples on every rank: use a train.global_batch that is a multiple of {}", ranks);
  return "";
}

// Whether micro-batches are routed at random between the islands' pipelines (NoLoCo).
parallel::Routing routing_of(const Settings& settings, const parallel::Plan& plan) {
  const parallel::RoutingOption asked = settings.layout.pipeline.routing;
  const std::string refusal = why_no_routing(settings, plan);
  if (asked == parallel::RoutingOption::random && !refusal.empty()) base::fail_input("pipeline.routing = random: {}", refusal);
  const bool random = asked == parallel::RoutingOption::random || (asked == parallel::RoutingOption::automatic && refusal.empty() &&
                                                                   sync::needs_of(settings.island.kind).random_routing);
  return random ? parallel::Routing::random : parallel::Routing::fixed;
}

// How many micro-batches a pipeline has, and how large they are.
void split_for_pipeline(const Settings& settings, int64_t local_samples, parallel::Plan& plan) {
  const parallel::PipelineOptions& pipeline = settings.layout.pipeline;
  if (settings.train.micro_batch > 0 && pipeline.micro_batches > 0)
    base::fail_input("train.micro_batch = {} and pipeline.micro_batches = {} say the same thing twice: leave one out",
                     settings.train.micro_batch, pipeline.micro_batches);
  plan.micro_batches = settings.train.micro_batch > 0 ? (local_samples + plan.micro_batch - 1) / plan.micro_batch
                       : pipeline.micro_batches > 0   ? pipeline.micro_batches
                                                      : std::min<int64_t>(4 * plan.mesh.extent("pp"), local_samples);
  if (plan.micro_batches > local_samples)
    base::fail_input("pipeline.micro_batches = {}: a rank has {} samples a step: use at most {}, or raise train.global_batch",
                     plan.micro_batches, local_samples, local_samples);
  plan.micro_batch = (local_samples + plan.micro_batches - 1) / plan.micro_batches;
}

}  // namespace

parallel::Plan make_plan(const Settings& settings, int ranks) {
  parallel::Plan plan = parallel::make_plan(settings.layout, ranks);
  plan.sync["dp"] = settings.sync.kind;
  if (is_remote_island(settings.remote)) {
    plan.island = static_cast<int>(settings.remote.number);
    plan.islands = static_cast<int>(settings.remote.count);
  }
  if (plan.mesh.extent("island") > 1 || plan.islands > 1) {
    plan.sync["island"] = settings.island.kind;
    plan.sync_facts.local_steps = sync::needs_of(settings.island.kind).local_steps;
  }
  check_settings(settings, plan);
  const int64_t data_ranks = data_ranks_of(plan), local_samples = (settings.train.global_batch + data_ranks - 1) / data_ranks;
  plan.micro_batch = settings.train.micro_batch == 0 ? local_samples : std::min(settings.train.micro_batch, local_samples);
  plan.precision = name_of(settings.train.precision);
  check_accumulation(settings, plan, local_samples);
  if (plan.mesh.extent("pp") == 1) {
    if (settings.layout.pipeline.routing == parallel::RoutingOption::random)
      base::fail_input("pipeline.routing = random: there is no pipeline (mesh.pp = 1): leave it out");
    return plan;
  }
  split_for_pipeline(settings, local_samples, plan);
  plan.routing = routing_of(settings, plan);
  return plan;
}

void check_recipe(base::Recipe recipe, int ranks, const parallel::Plan* given) {
  if (given) use_layout_of(*given, recipe, ranks > 0 ? ranks : given->mesh.size());
  const Settings settings = read_settings(recipe);
  if (ranks == 0) return;
  parallel::Plan plan = make_plan(settings, ranks);
  if (given) take_from(*given, plan);
}

}  // namespace cairn::train
