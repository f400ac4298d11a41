// Experts with one home and copies for a step (expert.placement = fssdp): new homes between steps, snapshots, resuming, refusals.
#include <cmath>
#include <filesystem>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/metrics.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "ended_models.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "parallel/expert_copies/reshard.h"
#include "refusal.h"
#include "small_decoder.h"
#include "train/build.h"
#include "train/experts/move_experts.h"
#include "train/state/full_state.h"
#include "train/take_step.h"
#include "train_on.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;
using Sets = std::vector<std::string>;

// Six experts; 7 samples divide over no number of ranks.
base::Recipe copies_recipe(const Sets& sets) {
  Sets all{"model.moe.experts=6", "model.moe.width=20", "model.moe.z_loss=0.001", "expert.placement=fssdp", "expert.memory_slots=1"};
  all.insert(all.end(), sets.begin(), sets.end());
  return small_decoder("mixtral", all);
}

struct HomesCase {
  std::string name;
  int ranks;
  Sets sets;
};

double metric_sum(const std::filesystem::path& out, const std::string& metric) {
  double sum = 0;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) sum += row.number(metric);
  return sum;
}

const Sets kEight{"train.steps=8", "snapshot.every=4", "snapshot.keep=2"};

Sets joined(const Sets& a, const Sets& b) {
  Sets all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

class ExpertHomes : public testing::TestWithParam<HomesCase> {};

// Homes change before steps 4 and 7. The snapshot of step 4 holds homes other than the first, which steps 5 and 6 need.
TEST_P(ExpertHomes, ChangeWithAllStateOfTheExperts) {
  const HomesCase& c = GetParam();
  const harness::ScratchFolder scratch;
  const std::vector<double> one = losses_on(1, copies_recipe(kEight), scratch / "one");
  const Sets sets = joined(joined(kEight, {"expert.reshard_every=3"}), c.sets);
  const std::vector<double> many = losses_on(c.ranks, copies_recipe(sets), scratch / "many");
  ASSERT_EQ(many.size(), 8U);
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(many[i], one[i], 1e-5 * one[i]) << i;
  EXPECT_LT(furthest(model_of(scratch / "one"), model_of(scratch / "many")), 1e-4);
  EXPECT_GT(metric_sum(scratch / "many", "expert_moved"), 0);  // or the test shows nothing
  EXPECT_GT(metric_sum(scratch / "many", "expert_copies"), 0);

  std::filesystem::copy(scratch / "many", scratch / "again", std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(scratch / "again" / "snapshots" / "step-00000008");
  EXPECT_EQ(losses_on(c.ranks, copies_recipe(sets), scratch / "again", /*resume=*/true), many);
  EXPECT_EQ(furthest(model_of(scratch / "again"), model_of(scratch / "many")), 0);
  std::filesystem::remove_all(scratch / "again" / "snapshots" / "step-00000008");
  const std::vector<double> elsewhere = losses_on(1, copies_recipe(kEight), scratch / "again", /*resume=*/true);
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(elsewhere[i], one[i], 1e-5 * one[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Every, ExpertHomes,
    testing::Values(HomesCase{"ep4", 4, {"mesh.ep=4", "expert.node_ranks=2"}}, HomesCase{"ep2", 2, {"mesh.ep=2"}},
                    HomesCase{"dp2_ep3", 6, {"mesh.ep=3", "train.micro_batch=1"}},
                    HomesCase{"dp2_ep2_zero2", 4, {"mesh.ep=2", "memory.zero=2"}},
                    HomesCase{"cp2_ep4_zero1", 8, {"mesh.cp=2", "mesh.ep=4", "memory.zero=1"}},
                    HomesCase{"tp2_ep2", 4, {"mesh.tp=2", "mesh.ep=2"}}, HomesCase{"pp2_ep2", 4, {"mesh.pp=2", "mesh.ep=2"}},
                    HomesCase{"ep6_calibrated_sent_again",
                              6,
                              {"mesh.ep=6", "expert.calibrate=true", "expert.memory_slots=3", "expert.rematerialize=true"}},
                    HomesCase{"lazy_snapshots", 4, {"mesh.ep=4", "snapshot.mode=lazy"}}),
    [](const auto& c) { return c.param.name; });

TEST(ExpertCalibration, CopiesMoreInTheStepAndChangesNothing) {
  const harness::ScratchFolder scratch;
  const std::vector<double> one = losses_on(1, copies_recipe({"train.steps=6"}), scratch / "one");
  const Sets sets{"train.steps=6", "mesh.ep=4", "expert.memory_slots=3", "train.micro_batch=1", "expert.calibrate=true"};
  const std::vector<double> many = losses_on(4, copies_recipe(sets), scratch / "many");
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(many[i], one[i], 1e-5 * one[i]) << i;
  EXPECT_GT(metric_sum(scratch / "many", "expert_calibrated"), 0);
}

// A fresh run with these homes would have the same tables, so what was moved is compared with whole tensors from before.
TEST(ExpertMoves, KeepEveryNumberOfTheState) {
  for (const Sets& sets : {Sets{"mesh.ep=3"}, Sets{"mesh.ep=3", "memory.zero=2"}, Sets{"mesh.ep=3", "memory.zero=1", "optim.kind=sgd"}}) {
    for (const std::exception_ptr& error : comm::LocalNetwork(6).run([&](comm::World& world) {
           const std::unique_ptr<Job> job = build(world, copies_recipe(sets), {}, {});
           for (int step = 0; step < 2; ++step) take_step(*job), ++job->progress.steps_done;
           const auto whole = [&] {
             mesh::NamedTensors all = gather_whole(*job, parameter_state(*job));
             for (mesh::NamedTensor& one : gather_whole(*job, optimizer_state(*job))) all.push_back(std::move(one));
             for (mesh::NamedTensor& one : all) one.tensor = one.tensor.clone();
             return all;
           };
           const mesh::NamedTensors before = whole();
           std::vector<mesh::Ragged> homes = job->engine.owned.copies->homes();
           homes[0].owners = {{2}, {2}, {2}, {2}, {0}, {0}};  // rank 1 has none in this layer
           homes[2].owners = {{1}, {0}, {1}, {2}, {1}, {1}};
           const int64_t sent = move_experts(*job, world, homes);
           EXPECT_EQ(job->engine.owned.copies->homes(), homes);
           const mesh::NamedTensors after = whole();
           ASSERT_EQ(before.size(), after.size());
           for (size_t i = 0; i < before.size(); ++i)
             EXPECT_TRUE(at::equal(before[i].tensor.view({-1}), after[i].tensor.view({-1}))) << before[i].name;
           const at::Tensor all_sent = at::full({1}, sent, at::kLong);
           world.everyone().all_reduce(all_sent, comm::Reduce::sum, {comm::Purpose::control, "sent"}).wait_host();
           if (sets.size() == 1 && world.rank() == 0) {
             // Parameters and two moments of the experts that moved, on two replicas; nothing else.
             const int64_t moved = parallel::moved_experts(std::vector<mesh::Ragged>(3, mesh::even_ragged(0, 6, 3)), homes);
             EXPECT_EQ(all_sent.item<int64_t>(), 2 * moved * 3 * 3 * 24 * 20 * 4);
           }
           take_step(*job);  // passes find their experts
         }))
      if (error) std::rethrow_exception(error);
  }
}

TEST(ExpertHomesRefusals, SayWhatToDoInstead) {
  const Sets ep{"mesh.ep=2", "train.steps=2"};
  const auto refused = [&](const Sets& more) { return refusal_of(copies_recipe(joined(ep, more)), 2); };
  EXPECT_THAT(refused({"optim.kind=adafactor"}), HasSubstr("optim.kind = adafactor works on whole matrices"));
  EXPECT_THAT(refused({"train.on_bad_step=rollback"}), HasSubstr("use expert.reshard_every = 0"));
  EXPECT_THAT(refused({"mesh.ep=1", "mesh.dp=2", "memory.zero=3"}), HasSubstr("use memory.zero = 2"));
  EXPECT_THAT(refused({"model.moe.width=1048576", "model.moe.experts=1024", "expert.memory_slots=300"}),
              HasSubstr("expert.memory_slots = 300: with 300 copies and 512 experts of its own in each of 3 layers at once"));
}

}  // namespace
}  // namespace cairn::train
