#include <algorithm>

#include "base/check.h"
#include "comm/group.h"
#include "comm/world.h"
#include "train/build/build_steps.h"
#include "train/build/check_settings.h"
#include "train/build/make_plan.h"
#include "train/given_plan.h"
#include "train/step_methods.h"

namespace cairn::train {
namespace {

// Sets the step group (the ranks that step together with this one), its run directory, and this rank's share of the samples.
void join_step_group(Job& job, comm::World& world, const std::filesystem::path& out) {
  const parallel::Plan& plan = job.config.plan;
  const bool separate = parallel::islands_step_separately(plan);
  const int island = separate && plan.islands == 1 ? plan.mesh.coordinate(world.rank(), "island") : 0;
  job.engine.step_group = separate ? &world.group(parallel::step_group_of(plan, world.rank()), "step_group") : &world.everyone();
  job.config.out = island == 0 || out.empty() ? out : out / fmt::format("island-{}", island);
  job.config.writes = job.engine.step_group->rank() == 0 && !out.empty();
  const std::vector<int> sharing = plan.mesh.peers_along(world.rank(), parallel::kSampleAxes);
  const auto mine = [&](int rank) { return !separate || plan.islands > 1 || plan.mesh.coordinate(rank, "island") == island; };
  data::SampleShares& shares = job.shares;
  shares.island = plan.island;
  shares.islands = plan.islands;
  shares.data_rank = static_cast<int>(std::find(sharing.begin(), sharing.end(), world.rank()) - sharing.begin());
  shares.data_ranks = static_cast<int>(sharing.size());
  shares.step_group_first = static_cast<int>(std::find_if(sharing.begin(), sharing.end(), mine) - sharing.begin());
  shares.step_group_ranks = static_cast<int>(std::count_if(sharing.begin(), sharing.end(), mine));
  const auto first = sharing.begin() + shares.step_group_first;
  CAIRN_CHECK(std::all_of(first, first + shares.step_group_ranks, mine), "the samples of island {} do not lie together", island);
  shares.data_share = static_cast<double>(shares.step_group_ranks) / job.engine.step_group->size();
  if (const auto held = step_method(job.config.settings).needs.shares)
    shares.held = held(job.config.settings, shares.data_rank, shares.data_ranks);
}

}  // namespace

void lay_out(Job& job, comm::World& world, const Start& start) {
  job.config.plan = make_plan(job.config.settings, world.size());
  if (start.plan) take_from(*start.plan, job.config.plan);
  check_device(job.config.settings, job.config.device);
  join_step_group(job, world, start.out);
  const Settings& s = job.config.settings;
  job.bad_steps = std::make_unique<BadSteps>(*job.engine.step_group, s.train, s.optim.learning_rate);
}

}  // namespace cairn::train
