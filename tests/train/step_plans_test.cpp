// Plans of each step in the trainer: the same losses, gradients and parameters as one rank that pads the same documents; kept, replayed,
// refused, and made with measured costs.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_of.h"
#include "base/metrics.h"
#include "base/recipe.h"
#include "comm/local/local.h"
#include "harness/scratch_folder.h"
#include "small_decoder.h"
#include "train/build.h"
#include "train/flops.h"
#include "train/layout_trace.h"
#include "train/replay.h"
#include "train/step_plan/kept_plans.h"
#include "train/step_plan/measure_costs.h"
#include "train/take_step.h"
#include "train_on.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;

// Documents of these lengths, as a text file.
std::string documents(const std::filesystem::path& folder, const std::vector<int64_t>& lengths, const std::string& name = "documents.txt") {
  std::filesystem::create_directories(folder);
  std::ofstream out(folder / name);
  uint64_t state = 1;
  for (size_t i = 0; i < lengths.size(); ++i) {
    for (int64_t k = 0; k < lengths[i]; ++k) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      out << static_cast<char>('a' + (state >> 33) % 26);
    }
    if (i + 1 < lengths.size()) out << "<|endoftext|>";
  }
  return (folder / name).string();
}

const std::vector<int64_t> kLengths{5, 40, 200, 130, 9, 77, 23, 300, 61, 12};

struct PlanCase {
  std::string name;
  int ranks;
  std::vector<std::string> sets;
  std::string family = "llama";
  double tolerance = 1e-5;
};

class StepPlans : public testing::TestWithParam<PlanCase> {
 protected:
  harness::ScratchFolder scratch_;
};

class StepPlanRuns : public testing::Test {
 protected:
  harness::ScratchFolder scratch_;
};

base::Recipe recipe_for(const std::string& data, const std::string& family, const std::vector<std::string>& sets) {
  base::Recipe recipe = small_decoder(family, {"data.path=" + data, "data.length=300", "train.global_batch=10", "eval.fraction=0"});
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

LayoutTrace recorded(int ranks, const base::Recipe& recipe, int64_t steps = 2, const comm::LocalOptions& options = {}) {
  LayoutTrace recording;
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks, options).run([&](comm::World& world) {
         LayoutTrace own = trace_layout(world, recipe, {.steps = steps, .tensors = true, .plant = {}, .cache = {}});
         if (world.rank() == 0) recording = std::move(own);
       }))
    if (error) std::rethrow_exception(error);
  return recording;
}

const std::vector<std::string> kPlanned{"data.packing=sequences", "context.tokens_per_rank=64"};

std::vector<std::string> planned_sets(const std::vector<std::string>& more) {
  std::vector<std::string> sets = kPlanned;
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

// What is no part of the layout holds for both.
bool is_of_layout(const std::string& set) {
  return set.starts_with("mesh.") || set.starts_with("memory.") || set.starts_with("context.") || set.starts_with("recompute.");
}

TEST_P(StepPlans, GiveTheGradientsAndParametersOfOneRank) {
  const PlanCase& c = GetParam();
  const std::string data = documents(scratch_.path(), kLengths);
  std::vector<std::string> padded{"data.packing=none"};
  for (const std::string& set : c.sets)
    if (!is_of_layout(set)) padded.push_back(set);
  if (c.family == "gla") padded.push_back("context.balanced=false");
  const LayoutTrace one = recorded(1, recipe_for(data, c.family, padded));
  const LayoutTrace many = recorded(c.ranks, recipe_for(data, c.family, planned_sets(c.sets)));
  const Difference found = first_difference(many, one, c.tolerance);
  EXPECT_EQ(found.step, 0) << found.what << " by " << found.largest << " of " << found.scale;
}

INSTANTIATE_TEST_SUITE_P(
    Every, StepPlans,
    testing::Values(PlanCase{"bytescale_1", 1, {"context.plan=bytescale", "context.tokens_per_rank=300"}},
                    PlanCase{"flexsp_1", 1, {"context.plan=flexsp", "context.tokens_per_rank=400"}},
                    PlanCase{"bytescale_2", 2, {"context.plan=bytescale", "context.tokens_per_rank=160"}},
                    PlanCase{"flexsp_2", 2, {"context.plan=flexsp", "context.tokens_per_rank=160"}},
                    PlanCase{"bytescale_3", 3, {"context.plan=bytescale", "context.tokens_per_rank=100"}},
                    PlanCase{"flexsp_3", 3, {"context.plan=flexsp", "context.tokens_per_rank=100"}},
                    PlanCase{"bytescale_5", 5, {"context.plan=bytescale"}}, PlanCase{"flexsp_5", 5, {"context.plan=flexsp"}},
                    PlanCase{"bytescale_8", 8, {"context.plan=bytescale"}}, PlanCase{"flexsp_8", 8, {"context.plan=flexsp"}},
                    PlanCase{"bytescale_zero1", 5, {"context.plan=bytescale", "memory.zero=1"}},
                    PlanCase{"bytescale_zero2", 5, {"context.plan=bytescale", "memory.zero=2"}},
                    PlanCase{"flexsp_zero1", 5, {"context.plan=flexsp", "memory.zero=1"}},
                    PlanCase{"flexsp_zero2", 5, {"context.plan=flexsp", "memory.zero=2"}},
                    PlanCase{"flexsp_zero3", 5, {"context.plan=flexsp", "memory.zero=3"}},
                    PlanCase{"flexsp_zero3_each_pass", 5, {"context.plan=flexsp", "memory.zero=3", "memory.accumulate_unsharded=false"}},
                    PlanCase{"flexsp_zero3_recompute", 6, {"context.plan=flexsp", "memory.zero=3", "recompute.mode=full"}},
                    PlanCase{"bytescale_shard", 6, {"context.plan=bytescale", "mesh.dp=6", "mesh.shard=3", "memory.zero=2"}},
                    PlanCase{"bytescale_tp2", 8, {"context.plan=bytescale", "mesh.tp=2", "context.tokens_per_rank=80"}},
                    PlanCase{"flexsp_tp2_zero3", 8, {"context.plan=flexsp", "mesh.tp=2", "memory.zero=3", "context.tokens_per_rank=80"}},
                    PlanCase{"bytescale_islands", 6, {"context.plan=bytescale", "mesh.island=2"}},
                    PlanCase{"bytescale_recompute", 5, {"context.plan=bytescale", "recompute.mode=full"}},
                    PlanCase{"bytescale_stream", 5, {"context.plan=bytescale", "recompute.mode=stream", "recompute.slice=7"}},
                    PlanCase{"bytescale_dropout", 5, {"context.plan=bytescale", "model.dropout=0.2"}},
                    PlanCase{"flexsp_dropout", 5, {"context.plan=flexsp", "model.dropout=0.2", "recompute.mode=full"}},
                    PlanCase{"bytescale_gather", 5, {"context.plan=bytescale", "context.form=gather"}},
                    PlanCase{"bytescale_token_ring", 5, {"context.plan=bytescale", "context.form=token_ring"}},
                    PlanCase{"bytescale_unbalanced", 5, {"context.plan=bytescale", "context.balanced=false"}},
                    PlanCase{"flexsp_ulysses", 6, {"context.plan=flexsp", "context.form=ulysses", "context.tokens_per_rank=80"}},
                    PlanCase{"bytescale_gpt2", 5, {"context.plan=bytescale"}, "gpt2"},
                    PlanCase{"flexsp_gpt2", 5, {"context.plan=flexsp", "memory.zero=3"}, "gpt2"},
                    PlanCase{"bytescale_gla", 5, {"context.plan=bytescale", "context.balanced=false"}, "gla"},
                    PlanCase{"bytescale_some_parameters", 5, {"context.plan=bytescale", R"(model.train=["*q_proj*", "*layers.1.mlp*"])"}},
                    PlanCase{"bytescale_muon", 5, {"context.plan=bytescale", "optim.kind=muon"}}),
    [](const auto& one) { return one.param.name; });

TEST_F(StepPlanRuns, UseThreeAndFiveRanksAndAreKept) {
  const std::string data = documents(scratch_.path(), kLengths);
  for (const std::string plan : {"bytescale", "flexsp"}) {
    const std::filesystem::path out = scratch_.path() / plan;
    train_on(5, recipe_for(data, "llama", planned_sets({"context.plan=" + plan, "train.steps=3"})), out);
    const std::map<int64_t, parallel::StepPlan> kept = read_kept_plans(out);
    ASSERT_EQ(kept.size(), 3U);
    std::set<size_t> degrees;
    for (const auto& [step, one] : kept) {
      EXPECT_EQ(one.ranks, 5);
      check(one, 10);
      for (const parallel::StepUnit& unit : one.units) degrees.insert(unit.ranks.size());
    }
    EXPECT_TRUE(degrees.contains(3) || plan == "flexsp") << plan;
    EXPECT_TRUE(degrees.contains(5)) << plan;
    const std::vector<base::MetricsRow> rows = base::read_metrics(out / "metrics.jsonl");
    ASSERT_EQ(rows.size(), 3U);
    EXPECT_EQ(rows[0].number("plan_sequences"), 10);
    EXPECT_EQ(rows[0].number("plan_units"), static_cast<double>(kept.at(1).units.size()));
    EXPECT_GE(rows[0].number("plan_imbalance"), 1);
    EXPECT_GT(rows[0].number("plan_seconds"), 0);
  }
}

TEST_F(StepPlanRuns, CountTheTokensOfTheirSequences) {
  const std::string data = documents(scratch_.path(), kLengths);
  int64_t tokens = 0;
  double pairs = 0;
  for (const int64_t length : kLengths) tokens += length, pairs += static_cast<double>(length) * static_cast<double>(length + 1) / 2;
  for (const std::exception_ptr& error : comm::LocalNetwork(5).run([&](comm::World& world) {
         const std::unique_ptr<Job> job =
             build(world, recipe_for(data, "llama", planned_sets({"context.plan=bytescale", "train.steps=1"})), {}, {});
         const TakenStep taken = take_step(*job);
         EXPECT_EQ(taken.positions, tokens);
         EXPECT_EQ(taken.tokens, tokens);
         const double one = training_flops_per_token(*job, 1), two = training_flops_per_token(*job, 2);
         const double of_pair = 2 * (two - one), of_token = one - of_pair;
         EXPECT_NEAR(taken.flops, of_token * static_cast<double>(tokens) + of_pair * pairs, 1e-9 * taken.flops);
       }))
    if (error) std::rethrow_exception(error);
}

TEST_F(StepPlanRuns, AreReplayedAsTheyWere) {
  const std::string data = documents(scratch_.path(), kLengths);
  const std::filesystem::path out = scratch_.path() / "run";
  train_on(3, recipe_for(data, "llama", planned_sets({"context.plan=bytescale", "context.tokens_per_rank=100", "train.steps=4"})), out);
  const auto replayed = [&] {
    Replayed result;
    const StepOfRecord record = read_step_of_record(out, 3);
    for (const std::exception_ptr& error : comm::LocalNetwork(3).run([&](comm::World& world) {
           Replayed own = replay(world, record, {});
           if (world.rank() == 0) result = std::move(own);
         }))
      if (error) std::rethrow_exception(error);
    return result;
  };
  EXPECT_TRUE(replayed().equal());
  // Another plan of the step sums in another order: the kept one is what is read.
  std::map<int64_t, parallel::StepPlan> kept = read_kept_plans(out);
  std::ofstream file(out / kPlansFile);
  for (auto& [step, plan] : kept) {
    for (parallel::StepUnit& unit : plan.units)
      for (int& rank : unit.ranks) rank = plan.ranks - 1 - rank;
    file << to_json(plan) << '\n';
  }
  file.close();
  const Replayed other = replayed();
  EXPECT_FALSE(other.equal());
  EXPECT_NEAR(other.loss_now, other.loss_then, 1e-5);
  // A run without them plans anew, and says so.
  std::filesystem::remove(out / kPlansFile);
  EXPECT_THAT(replayed().differences, testing::Contains(HasSubstr("has no plan of step 3")));
}

TEST_F(StepPlanRuns, AreCutWithTheMetricsWhenARunIsResumed) {
  const std::string data = documents(scratch_.path(), kLengths);
  const std::filesystem::path out = scratch_.path() / "run";
  const auto recipe = [&](int64_t steps) {
    return recipe_for(data, "llama",
                      planned_sets({"context.plan=flexsp", "context.tokens_per_rank=100", fmt::format("train.steps={}", steps),
                                    "snapshot.every=2", "snapshot.last=false"}));
  };
  train_on(3, recipe(3), out);
  EXPECT_EQ(read_kept_plans(out).size(), 3U);
  train_on(3, recipe(4), out, /*resume=*/true);
  std::ifstream file(out / kPlansFile);
  std::vector<int64_t> steps;
  for (std::string line; std::getline(file, line);) steps.push_back(parallel::parse_step_plan(line, "a test").step);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST_F(StepPlanRuns, EvaluateHeldOutSequencesAsOneRankDoes) {
  const std::string data = documents(scratch_.path(), kLengths);
  const std::vector<std::string> held{"eval.fraction=0.2", "eval.every=2", "train.steps=2", "train.global_batch=6"};
  const auto loss = [&](int ranks, std::vector<std::string> sets, const std::string& name) {
    sets.insert(sets.end(), held.begin(), held.end());
    train_on(ranks, recipe_for(data, "llama", sets), scratch_.path() / name);
    return base::read_metrics(scratch_.path() / name / "metrics.jsonl").back().number("eval_loss");
  };
  const double one = loss(1, {"data.packing=none"}, "one");
  EXPECT_NEAR(loss(3, planned_sets({"context.plan=bytescale", "context.tokens_per_rank=100"}), "bytescale"), one, 1e-5);
  EXPECT_NEAR(loss(3, planned_sets({"context.plan=flexsp", "context.tokens_per_rank=100", "memory.zero=3"}), "flexsp"), one, 1e-5);
}

TEST_F(StepPlanRuns, RanksWithOtherDocumentsAreFound) {
  std::vector<int64_t> other = kLengths;
  other[3] = 131;
  const std::string data = documents(scratch_.path(), kLengths), wrong = documents(scratch_.path(), other, "others.txt");
  std::string text;
  for (const std::exception_ptr& error : comm::LocalNetwork(3).run([&](comm::World& world) {
         (void)build(
             world,
             recipe_for(world.rank() == 1 ? wrong : data, "llama", planned_sets({"context.plan=bytescale", "context.tokens_per_rank=101"})),
             {}, {});
       }))
    if (error && text.empty()) text = base::message_of([&] { std::rethrow_exception(error); });
  EXPECT_THAT(text, HasSubstr("ranks do not agree on step 1"));
}

TEST_F(StepPlanRuns, RefuseWhatCannotWork) {
  const std::string data = documents(scratch_.path(), kLengths);
  const auto refused = [&](int ranks, const std::vector<std::string>& sets) {
    std::string text;
    for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run(
             [&](comm::World& world) { (void)build(world, recipe_for(data, "llama", planned_sets(sets)), {}, {}); }))
      if (error && text.empty()) text = base::message_of([&] { std::rethrow_exception(error); });
    return text;
  };
  EXPECT_THAT(refused(5, {"context.plan=bytescale", "memory.zero=3"}), HasSubstr("use context.plan = flexsp, or memory.zero = 2"));
  EXPECT_THAT(refused(10, {"context.plan=bytescale", "mesh.pp=2"}), HasSubstr("use mesh.dp or mesh.tp instead"));
  EXPECT_THAT(refused(10, {"context.plan=flexsp", "mesh.cp=2"}), HasSubstr("use mesh.dp in its place"));
  EXPECT_THAT(
      refused(3, {"context.plan=bytescale"}),
      HasSubstr("a sequence of 300 tokens is longer than the 192 that 3 ranks hold together. Set context.tokens_per_rank to at least "
                "100, or train on at least 5 ranks"));
  EXPECT_THAT(refused(5, {"context.plan=bytescale", "context.tokens_per_rank=0"}), HasSubstr("context.tokens_per_rank = 0"));
  EXPECT_THAT(refused(5, {"context.plan=bytescale", "data.packing=none"}), HasSubstr("Set data.packing = sequences"));
  EXPECT_THAT(refused(5, {"context.plan=fixed"}), HasSubstr("Set context.plan = bytescale or flexsp"));
  EXPECT_THAT(refused(5, {"context.plan=bytescale", "context.form=ulysses"}), HasSubstr("or context.plan = flexsp"));
  EXPECT_THAT(refused(5, {"context.plan=bytescale", "train.micro_batch=2"}), HasSubstr("Leave it out"));
  EXPECT_THAT(refused(5, {"context.plan=bytescale", "memory.zero=2", "memory.accumulate_unsharded=false"}),
              HasSubstr("Set it to true, or use context.plan = flexsp"));
}

// Two nodes of two ranks; the links between them are a hundred times slower.
TEST_F(StepPlanRuns, MeasureTheLinksAndFindTheNodes) {
  comm::LocalOptions options;
  options.link = {.latency = std::chrono::microseconds(1), .bytes_per_s = 1e9, .jitter = 0};
  options.link.bytes_per_s_matrix.assign(4, std::vector<double>(4, 1e9));
  for (size_t a = 0; a < 4; ++a)
    for (size_t b = 0; b < 4; ++b)
      if (a / 2 != b / 2) options.link.bytes_per_s_matrix[a][b] = 1e7;
  const std::string data = documents(scratch_.path(), kLengths);
  for (const std::exception_ptr& error : comm::LocalNetwork(4, options).run([&](comm::World& world) {
         const std::unique_ptr<Job> job =
             build(world, recipe_for(data, "llama", planned_sets({"context.plan=flexsp", "context.tokens_per_rank=100"})), {}, {});
         planner::SequencePool pool{.ranks = 4, .tokens_per_rank = 100, .ranks_per_node = ranks_per_node(world, {0, 1, 2, 3}), .costs = {}};
         EXPECT_EQ(pool.ranks_per_node, 2);
         EXPECT_EQ(ranks_per_node(world, {0, 2, 1, 3}), 0);  // not neighbours
         measure_costs(*job, world, pool);
         EXPECT_GT(pool.costs.quadratic_s, 0);
         EXPECT_GT(pool.costs.linear_s, 0);
         EXPECT_NEAR(pool.costs.bandwidth.at(2), 1e9, 0.1e9);
         EXPECT_NEAR(pool.costs.bandwidth.at(4), 1e7, 0.1e7);
         EXPECT_GT(pool.costs.exchange_bytes, 0);
       }))
    if (error) std::rethrow_exception(error);
}

}  // namespace
}  // namespace cairn::train
