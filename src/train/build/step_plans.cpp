// Step plans (context.plan): the pool of ranks, the planner by name, and its costs.
#include <algorithm>
#include <memory>
#include <numeric>

#include "base/check.h"
#include "base/log.h"
#include "comm/world.h"
#include "model/families/config.h"
#include "planner/step_plan/bytescale.h"
#include "planner/step_plan/flexsp.h"
#include "train/build/batches.h"
#include "train/build/build_steps.h"
#include "train/step_plan/measure_costs.h"

namespace cairn::train {
namespace {

// Query heads of a rank along tp that has fewest; 0: nothing is known of the model's heads.
int64_t least_heads(const Job& job) {
  const std::string config = job.engine.model->config_json();
  if (config.empty()) return 0;
  return model::parse_config(config, "the model").heads / job.config.plan.mesh.extent("tp");
}

// Degrees that the form of attention allows: ulysses divides heads.
std::vector<int> degrees_of(const Job& job, const planner::SequencePool& pool) {
  const model::ContextMethod& method = job.engine.context.method;
  std::vector<int> degrees = planner::default_degrees(pool);
  const int64_t heads = least_heads(job);
  if (method.form == model::ContextForm::ulysses && heads > 0) std::erase_if(degrees, [&](int d) { return heads % d != 0; });
  return degrees;
}

void check_form(const Job& job) {
  const parallel::ContextPlan by = job.config.settings.layout.context.plan;
  const model::ContextMethod& method = job.engine.context.method;
  if (method.ulysses > 1)
    base::fail_input("context.form = {}: context.plan = {} gives each sequence ranks of its own, which have no fixed teams. Use one form.",
                     job.config.settings.layout.context.form, base::enum_name(parallel::kContextPlanNames, by));
  if (by == parallel::ContextPlan::bytescale && method.form == model::ContextForm::ulysses)
    base::fail_input(
        "context.form = ulysses: context.plan = bytescale gives a sequence any number of ranks, and ulysses divides heads. Use "
        "context.form = ring, or context.plan = flexsp.");
}

PlannedBatches::Planner planner_of(parallel::ContextPlan by, planner::SequencePool pool, std::vector<int> degrees) {
  if (by == parallel::ContextPlan::bytescale)
    return [pool](int64_t step, const std::vector<parallel::PlannedSequence>& sequences) {
      return planner::plan_bytescale(step, sequences, pool);
    };
  return [pool, degrees](int64_t step, const std::vector<parallel::PlannedSequence>& sequences) {
    return planner::plan_flexsp(step, sequences, pool, {.groups = {.degrees = degrees}}).plan;
  };
}

}  // namespace

void build_step_plans(Job& job, comm::World& world) {
  const parallel::ContextOptions& context = job.config.settings.layout.context;
  if (context.plan == parallel::ContextPlan::fixed) return;
  check_form(job);
  if (job.subset.weighted())
    base::fail_input(
        "context.plan = {}: a pass holds several samples in one row, which have one weight. Train on a subset without weights.",
        base::enum_name(parallel::kContextPlanNames, context.plan));
  const planner::SequencePool pool{.ranks = job.shares.step_group_ranks, .tokens_per_rank = context.tokens_per_rank, .costs = {}};
  int64_t longest = 0;  // of all samples: better refused now than in a later step
  for (int64_t i = 0; i < job.subset.size(); ++i) longest = std::max(longest, job.data.samples->length_of(job.subset.id(i)));
  planner::check_longest(pool, longest);
  const std::vector<int> sharing = job.config.plan.mesh.peers_along(world.rank(), parallel::kSampleAxes);
  const auto first = sharing.begin() + job.shares.step_group_first;
  const std::vector<int> ranks(first, first + job.shares.step_group_ranks);
  job.engine.micro_batching.pool.rank = job.shares.data_rank - job.shares.step_group_first;
  job.engine.micro_batching.pool.ranks = static_cast<int>(ranks.size());
  job.engine.micro_batching.pool.group = [&world, ranks](const std::vector<int>& of_pool) -> comm::Group& {
    std::vector<int> members;
    for (const int rank : of_pool) members.push_back(ranks[static_cast<size_t>(rank)]);
    return world.group(std::move(members), "unit");
  };
  job.ahead.plan_group = &world.group(job.engine.step_group->ranks(), "step plans");
}

void plan_by_measured_costs(Job& job, comm::World& world) {
  const parallel::ContextOptions& context = job.config.settings.layout.context;
  if (context.plan == parallel::ContextPlan::fixed) return;
  std::vector<int> all(static_cast<size_t>(job.engine.micro_batching.pool.ranks));
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int> ranks = job.engine.micro_batching.pool.group(all).ranks();
  planner::SequencePool pool{.ranks = job.engine.micro_batching.pool.ranks,
                             .tokens_per_rank = context.tokens_per_rank,
                             .ranks_per_node = ranks_per_node(world, ranks),
                             .costs = {}};
  pool.costs.exchange =
      job.engine.context.method.form == model::ContextForm::ulysses ? planner::Exchange::all_to_all : planner::Exchange::ring;
  measure_costs(job, world, pool);
  if (world.rank() == 0)
    world.log().info("context.plan = {}: {}", base::enum_name(parallel::kContextPlanNames, context.plan), planner::in_words(pool));
  job.ahead.planner = planner_of(context.plan, pool, degrees_of(job, pool));
}

std::unique_ptr<PlannedBatches> plan_ahead(Job& job) {
  return std::make_unique<PlannedBatches>(PlannedBatches::Parts{.step_group = *job.ahead.plan_group,
                                                                .pool_rank = job.engine.micro_batching.pool.rank,
                                                                .pool_ranks = job.engine.micro_batching.pool.ranks,
                                                                .source = *job.batches,
                                                                .dataset = *job.data.samples,
                                                                .planner = job.ahead.planner},
                                          batch_index(job, job.progress.steps_done + 1), last_step(job));
}

}  // namespace cairn::train
