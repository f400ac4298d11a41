// Step plans (context.plan): the pool of ranks, the planner by name, and its costs.
#include <algorithm>

#include "base/check.h"
#include "comm/world.h"
#include "planner/step_plan/bytescale.h"
#include "planner/step_plan/flexsp.h"
#include "train/build/batches.h"
#include "train/build/build_steps.h"
#include "train/flops.h"

namespace cairn::train {
namespace {

constexpr double kFlopsPerSecond = 1e12;  // its value does not matter: without measured links, plans depend on ratios of costs only
constexpr const char* kPlansFile = "step_plans.jsonl";

// From the cards of the blocks: a token attends to half of its sequence on average, so FLOPs of a token are b + a s.
planner::SequenceCosts costs_of(const model::Model& model, int64_t longest) {
  const double longest_d = static_cast<double>(std::max<int64_t>(longest, 2));
  const double one = forward_flops_per_token(model, 1), all = forward_flops_per_token(model, static_cast<int64_t>(longest_d));
  const double more = (all - one) / (longest_d - 1);
  return {.quadratic_s = 3 * more / kFlopsPerSecond,
          .linear_s = 3 * (one - more) / kFlopsPerSecond,
          .pass_s = 0,
          .exchange = planner::Exchange::ring,
          .exchange_bytes = 0,
          .bandwidth = {}};
}

PlannedBatches::Planner planner_of(parallel::ContextPlan by, planner::SequencePool pool) {
  if (by == parallel::ContextPlan::bytescale)
    return [pool](int64_t step, const std::vector<parallel::PlannedSequence>& sequences) {
      return planner::plan_bytescale(step, sequences, pool);
    };
  return [pool](int64_t step, const std::vector<parallel::PlannedSequence>& sequences) {
    return planner::plan_flexsp(step, sequences, pool).plan;
  };
}

}  // namespace

void build_step_plans(Job& job, comm::World& world) {
  const parallel::ContextOptions& context = job.config.settings.layout.context;
  if (context.plan == parallel::ContextPlan::fixed) return;
  if (job.subset.weighted())
    base::fail_input("context.plan = {}: a pass holds several samples in one row, which have one weight. Train on a subset without weights.",
                     base::enum_name(parallel::kContextPlanNames, context.plan));
  const std::vector<int> sharing = job.config.plan.mesh.peers_along(world.rank(), parallel::kSampleAxes);
  const auto first = sharing.begin() + job.shares.step_group_first;
  const std::vector<int> ranks(first, first + job.shares.step_group_ranks);
  job.engine.pool.rank = job.shares.data_rank - job.shares.step_group_first;
  job.engine.pool.group = [&world, ranks](const std::vector<int>& of_pool) -> comm::Group& {
    std::vector<int> members;
    for (const int rank : of_pool) members.push_back(ranks[static_cast<size_t>(rank)]);
    return world.group(std::move(members));
  };
  job.plan_group = &world.group(ranks, "step plans");
  job.planner = planner_of(context.plan, {.ranks = static_cast<int>(ranks.size()),
                                          .tokens_per_rank = context.tokens_per_rank,
                                          .ranks_per_node = 0,
                                          .costs = costs_of(*job.engine.model, job.data.length)});
}

std::unique_ptr<PlannedBatches> plan_ahead(Job& job) {
  return std::make_unique<PlannedBatches>(*job.plan_group, *job.batches, *job.data.samples, job.planner,
                                          batch_index(job, job.progress.steps_done + 1), job.config.settings.train.steps,
                                          job.config.writes ? job.config.out / kPlansFile : std::filesystem::path());
}

}  // namespace cairn::train
