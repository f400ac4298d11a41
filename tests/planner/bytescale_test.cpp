#include "planner/step_plan/bytescale.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_of.h"
#include "step_plan_lengths.h"

namespace cairn::planner {
namespace {

using parallel::PlannedSequence;
using parallel::StepPlan;
using parallel::StepUnit;
using testing::ElementsAre;
using testing::HasSubstr;

// Tokens of keys and values that ring attention sends: each of D ranks passes on all parts but one.
int64_t tokens_sent(const StepPlan& plan) {
  int64_t sum = 0;
  for (const StepUnit& unit : plan.units) sum += (static_cast<int64_t>(unit.ranks.size()) - 1) * unit.tokens();
  return sum;
}

TEST(Bytescale, GivesEverySequenceTheRanksItNeeds) {
  const SequencePool pool = bytescale_pool();
  const std::vector<PlannedSequence> batch = bytescale_batch(1);
  const StepPlan plan = plan_bytescale(1, batch, pool);
  check(plan, static_cast<int64_t>(batch.size()));
  EXPECT_EQ(plan.micro_batches, 0);
  for (const StepUnit& unit : plan.units) {
    const auto degree = static_cast<int64_t>(unit.ranks.size());
    EXPECT_LE(unit.tokens(), pool.tokens_per_rank * degree);
    if (unit.sequences.size() > 1) {
      EXPECT_EQ(degree, 1);
    }
    EXPECT_GE(degree, pool.ranks_for(unit.sequences.front().length));
  }
}

TEST(Bytescale, SendsAThirdOfWhatEightRanksForAllSend) {
  // Every long sequence has the fewest ranks that hold it, so a batch with more of them sends more: the ratio of single batches of this
  // kind is between 2.9 and 4.7.
  int64_t tokens = 0, sent = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const std::vector<PlannedSequence> batch = bytescale_batch(seed);
    const StepPlan plan = plan_bytescale(1, batch, bytescale_pool());
    for (const PlannedSequence& one : batch) tokens += one.length;
    sent += tokens_sent(plan);
    for (const StepUnit& unit : plan.units)
      EXPECT_EQ(static_cast<int64_t>(unit.ranks.size()), bytescale_pool().ranks_for(unit.tokens())) << "seed " << seed;
  }
  EXPECT_GE(static_cast<double>(7 * tokens) / static_cast<double>(sent), 3.0);
}

TEST(Bytescale, LoadsNoRankMoreThanAFifthAboveTheMean) {
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    const StepPlan plan = plan_bytescale(1, bytescale_batch(seed), bytescale_pool());
    const std::vector<double> load = predicted_load_s(plan);
    const double mean = std::accumulate(load.begin(), load.end(), 0.0) / 8;
    EXPECT_LE(*std::max_element(load.begin(), load.end()), 1.2 * mean) << "seed " << seed;
    EXPECT_LE(predicted_imbalance(plan), 1.25) << "seed " << seed;  // with the waits for the others of a unit
  }
}

TEST(Bytescale, AnyNumberOfRanks) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    SequencePool pool = bytescale_pool();
    pool.ranks = ranks;
    const std::vector<PlannedSequence> batch = sequences_of({512L * ranks, 512L * ranks - 511, 600, 20, 30, 512, 511});
    if (ranks == 1) {
      EXPECT_THAT(base::message_of([&] { (void)plan_bytescale(1, batch, pool); }),
                  HasSubstr("a sequence of 600 tokens is longer than the 512 that 1 ranks hold together"));
      continue;
    }
    const StepPlan plan = plan_bytescale(1, batch, pool);
    check(plan, 7);
    std::set<size_t> degrees;
    for (const StepUnit& unit : plan.units) degrees.insert(unit.ranks.size());
    EXPECT_TRUE(degrees.contains(static_cast<size_t>(ranks)));
  }
}

TEST(Bytescale, FewSequencesGetMoreRanks) {
  SequencePool pool = bytescale_pool();
  const StepPlan plan = plan_bytescale(1, sequences_of({500}), pool);
  ASSERT_EQ(plan.units.size(), 1U);
  EXPECT_GT(plan.units[0].ranks.size(), 1U);
}

TEST(Bytescale, StaysInsideNodesWhereOneIsFree) {
  SequencePool pool = bytescale_pool();
  pool.ranks_per_node = 4;
  const StepPlan plan = plan_bytescale(1, sequences_of({2000, 2001, 2002, 2003, 1500, 1000}), pool);
  for (const StepUnit& unit : plan.units)
    if (unit.ranks.size() <= 4) {
      EXPECT_EQ(pool.nodes_of(unit.ranks), 1) << unit.sequences.front().length;
    }
}

TEST(Bytescale, PacksByWorkAsWellAsByTokens) {
  // 512 tokens of one sequence are five times the work of 32 sequences of 16: the packs of short ones may not be 5 times as many.
  SequencePool pool = bytescale_pool();
  pool.costs = {.quadratic_s = 1e-6, .linear_s = 1e-6, .pass_s = 0};
  std::vector<int64_t> lengths(64, 16);
  lengths.insert(lengths.end(), {250, 250, 250, 250});
  const StepPlan plan = plan_bytescale(1, sequences_of(lengths), pool);
  for (const StepUnit& unit : plan.units) {
    const auto large = std::count_if(unit.sequences.begin(), unit.sequences.end(), [](const PlannedSequence& one) { return one.length == 250; });
    EXPECT_LE(large, 1);  // two fit by tokens
  }
}

TEST(Bytescale, IsAFunctionOfItsArguments) {
  const StepPlan plan = plan_bytescale(7, bytescale_batch(9), bytescale_pool());
  EXPECT_EQ(plan, plan_bytescale(7, bytescale_batch(9), bytescale_pool()));
  EXPECT_EQ(parallel::parse_step_plan(to_json(plan), "a test"), plan);
}

}  // namespace
}  // namespace cairn::planner
