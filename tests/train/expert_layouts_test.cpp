// Layers with experts, whose experts lie along ep: against one rank that holds all of them.
#include <cmath>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/metrics.h"
#include "comm/local/local.h"
#include "ended_models.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "small_decoder.h"
#include "train/layout_trace.h"
#include "train_on.h"

namespace cairn::train {
namespace {

using Sets = std::vector<std::string>;

// Six experts, with both losses of the router, on packed documents. 7 samples divide over no number of ranks.
base::Recipe experts_recipe(const Sets& sets) {
  Sets all{"model.moe.experts=6", "model.moe.width=20", "model.moe.z_loss=0.001", "data.packing=separate"};
  all.insert(all.end(), sets.begin(), sets.end());
  return small_decoder("mixtral", all);
}

LayoutTrace traced(int ranks, const Sets& sets, const std::string& plant = "") {
  LayoutTrace recording;
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run([&](comm::World& world) {
         LayoutTrace own = trace_layout(world, experts_recipe(sets), {.steps = 2, .tensors = true, .plant = plant, .cache = {}});
         if (world.rank() == 0) recording = std::move(own);
       }))
    if (error) std::rethrow_exception(error);
  return recording;
}

const LayoutTrace& alone() {
  static const LayoutTrace one = traced(1, {});
  return one;
}

struct ExpertLayout {
  std::string name;
  int ranks;
  Sets sets;
};

class ExpertLayouts : public testing::TestWithParam<ExpertLayout> {};

TEST_P(ExpertLayouts, GiveTheGradientsAndParametersOfOneRank) {
  const LayoutTrace many = traced(GetParam().ranks, GetParam().sets);
  const Difference found = first_difference(many, alone(), 1e-5);
  EXPECT_EQ(found.step, 0) << found.what << " by " << found.largest << " of " << found.scale;
  for (size_t i = 0; i < many.steps.size(); ++i) EXPECT_EQ(routing_difference(many.steps[i].routing, alone().steps[i].routing), "");
  EXPECT_FALSE(many.steps[0].routing.empty());
  EXPECT_EQ(many.steps[0].routing.size(), alone().steps[0].routing.size());
}

INSTANTIATE_TEST_SUITE_P(
    Every, ExpertLayouts,
    testing::Values(ExpertLayout{"dp3", 3, {}}, ExpertLayout{"ep2", 2, {"mesh.ep=2"}}, ExpertLayout{"ep3", 3, {"mesh.ep=3"}},
                    ExpertLayout{"ep4_uneven", 4, {"mesh.ep=4"}}, ExpertLayout{"ep4_empty_passes", 4, {"mesh.ep=4", "train.micro_batch=1"}},
                    ExpertLayout{"more_ranks_than_samples", 8, {"mesh.ep=4", "train.global_batch=7", "memory.zero=2"}},
                    ExpertLayout{"dp2_ep2", 4, {"mesh.ep=2"}}, ExpertLayout{"dp2_ep3_zero1", 6, {"mesh.ep=3", "memory.zero=1"}},
                    ExpertLayout{"dp2_ep4_zero2", 8, {"mesh.ep=4", "memory.zero=2"}},
                    ExpertLayout{"dp3_ep2_zero3", 6, {"mesh.ep=2", "memory.zero=3"}},
                    ExpertLayout{"dp2_ep2_zero3_each_micro_batch",
                                 4,
                                 {"mesh.ep=2", "memory.zero=3", "train.micro_batch=1", "memory.accumulate_unsharded=false"}},
                    ExpertLayout{"tp2_ep2", 4, {"mesh.tp=2", "mesh.ep=2"}},
                    ExpertLayout{"dp2_tp2_ep2_zero1", 8, {"mesh.tp=2", "mesh.ep=2", "memory.zero=1"}},
                    ExpertLayout{"cp2_ep2", 4, {"mesh.cp=2", "mesh.ep=2"}},
                    ExpertLayout{"cp2_ep3_zero3", 6, {"mesh.cp=2", "mesh.ep=3", "memory.zero=3"}},
                    ExpertLayout{"pp3_ep2", 6, {"mesh.pp=3", "mesh.ep=2"}},
                    ExpertLayout{"pp2_ep3_zero_bubble", 6, {"mesh.pp=2", "mesh.ep=3", "pipeline.schedule=zb_h1"}},
                    ExpertLayout{"pp2_dp2_ep2_zero1", 8, {"mesh.pp=2", "mesh.ep=2", "memory.zero=1"}},
                    ExpertLayout{"recompute_full", 4, {"mesh.ep=4", "recompute.mode=full", "train.micro_batch=1"}},
                    ExpertLayout{"island2_ep2", 4, {"mesh.island=2", "mesh.ep=2"}},
                    ExpertLayout{"hierarchical", 6, {"mesh.ep=6", "expert.dispatch=hierarchical", "expert.node_ranks=2"}},
                    ExpertLayout{"fssdp", 4, {"mesh.ep=4", "expert.placement=fssdp", "expert.memory_slots=1"}},
                    ExpertLayout{"fssdp_zero2", 8, {"mesh.ep=4", "expert.placement=fssdp", "memory.zero=2", "train.micro_batch=1"}},
                    ExpertLayout{"fssdp_tp2", 4, {"mesh.tp=2", "mesh.ep=2", "expert.placement=fssdp", "expert.overlap_degree=6"}}),
    [](const auto& c) { return c.param.name; });

TEST(ExpertLayoutsPlanted, AMissingSumOverRanksAlongEpIsFoundAndNamed) {
  const LayoutTrace wrong = traced(2, {"mesh.ep=2"}, "model.layers.1.self_attn.q_proj.weight");
  const Difference found = first_difference(wrong, alone(), 1e-5);
  EXPECT_EQ(found.step, 1);
  EXPECT_NE(found.what.find("model.layers.1.self_attn.q_proj.weight"), std::string::npos) << found.what;
}

TEST(ExpertLayoutsOfOptimizers, GiveTheParametersOfOneRank) {
  for (const char* rule : {"optim.kind=muon", "optim.kind=adafactor"}) {
    const LayoutTrace one = traced(1, {rule});
    for (const ExpertLayout& c : std::vector<ExpertLayout>{
             {"ep3", 3, {"mesh.ep=3"}}, {"tp2_ep2", 4, {"mesh.tp=2", "mesh.ep=2"}}, {"dp2_ep2_zero1", 4, {"mesh.ep=2", "memory.zero=1"}}}) {
      Sets sets = c.sets;
      sets.emplace_back(rule);
      const Difference found = first_difference(traced(c.ranks, sets), one, 1e-5);
      EXPECT_EQ(found.step, 0) << rule << ' ' << c.name << ": " << found.what << " by " << found.largest << " of " << found.scale;
    }
  }
}

TEST(ExpertLayoutsInBf16, TrainAlmostAsOneRank) {
  const Sets bf16{"train.precision=bf16"};
  const LayoutTrace one = traced(1, bf16);
  for (const ExpertLayout& c :
       std::vector<ExpertLayout>{{"ep4", 4, {"mesh.ep=4"}}, {"dp2_tp2_ep2_zero2", 8, {"mesh.tp=2", "mesh.ep=2", "memory.zero=2"}}}) {
    Sets sets = c.sets;
    sets.insert(sets.end(), bf16.begin(), bf16.end());
    const LayoutTrace many = traced(c.ranks, sets);
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(many.steps[i].loss, one.steps[i].loss, 4e-3 * one.steps[i].loss) << c.name;
  }
}

// Trains six steps in a folder, or the last three of them from its snapshot of step 3.
std::vector<double> losses_of(const ExpertLayout& c, const std::filesystem::path& out, bool resume) {
  const base::Stop never;
  for (const std::exception_ptr& error : comm::LocalNetwork(c.ranks).run([&](comm::World& world) {
         base::Recipe recipe = experts_recipe(c.sets);
         recipe.set("train.steps", int64_t{6}, "test");
         recipe.set("snapshot.every", int64_t{3}, "test");
         Start start;
         start.out = out;
         start.resume = resume;
         start.resume_step_last = resume ? 3 : start.resume_step_last;
         run(world, std::move(recipe), start, {}, never);
       }))
    if (error) std::rethrow_exception(error);
  std::vector<double> losses;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) losses.push_back(row.number("loss"));
  return losses;
}

TEST(ExpertLayoutSnapshots, AreLoadedByEveryOtherLayout) {
  const std::vector<ExpertLayout> cases{{"one", 1, {}},
                                        {"ep4", 4, {"mesh.ep=4"}},
                                        {"dp2_ep2_zero2", 4, {"mesh.ep=2", "memory.zero=2"}},
                                        {"tp2_ep3", 6, {"mesh.tp=2", "mesh.ep=3"}},
                                        {"pp2_ep2", 4, {"mesh.pp=2", "mesh.ep=2"}}};
  std::vector<double> expected;
  for (const ExpertLayout& from : cases) {
    const harness::ScratchFolder scratch;
    const std::vector<double> whole = losses_of(from, scratch.path() / "run", false);
    if (expected.empty()) expected = whole;
    ASSERT_EQ(whole.size(), 6U);
    for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(whole[i], expected[i], 1e-5) << from.name;
    for (const ExpertLayout& to : cases) {
      const std::filesystem::path copy = scratch.path() / to.name;
      std::filesystem::copy(scratch.path() / "run", copy, std::filesystem::copy_options::recursive);
      const std::vector<double> resumed = losses_of(to, copy, true);
      ASSERT_EQ(resumed.size(), 6U);
      for (size_t i = 3; i < 6; ++i) EXPECT_NEAR(resumed[i], whole[i], 1e-6) << from.name << " to " << to.name;
    }
  }
}

// Two islands whose experts lie along ep, which send fragments of their models: trained, saved, and loaded on one rank.
TEST(ExpertLayoutIslands, TrainSaveAndLoadOnOneRank) {
  const harness::ScratchFolder folder;
  const Sets streaming{"mesh.island=2",
                       "sync.island.kind=streaming_diloco",
                       "sync.island.every=4",
                       "sync.island.delay=1",
                       "sync.island.fragment_layers=1",
                       "sync.island.wire=fp32",
                       "train.global_batch=8",
                       "train.steps=8",
                       "snapshot.every=4"};
  train_on(2, experts_recipe(streaming), folder / "plain");
  Sets along_ep = streaming;
  along_ep.emplace_back("mesh.ep=2");
  train_on(4, experts_recipe(along_ep), folder / "ep");
  EXPECT_LT(furthest(model_of(folder / "plain"), model_of(folder / "ep")), 1e-4);
  EXPECT_EQ(furthest(model_of(folder / "ep"), model_of(folder / "ep" / "island-1")), 0);
  const Sets again{"model.from=" + (folder / "ep").string(), "model.mlp=20", "train.steps=1", "snapshot.every=0"};
  train_on(1, experts_recipe(again), folder / "again");
  const auto rows = base::read_metrics(folder / "again" / "metrics.jsonl");
  const auto before = base::read_metrics(folder / "ep" / "metrics.jsonl");
  EXPECT_NEAR(rows.front().number("loss"), before.back().number("loss"), 0.3);
}

}  // namespace
}  // namespace cairn::train
