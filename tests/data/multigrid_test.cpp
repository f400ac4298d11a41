#include <cmath>
#include <numbers>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/sampler.h"
#include "data/samples/multigrid_schedule.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

SamplerOptions stages(std::vector<double> at) {
  SamplerOptions options;
  options.stages = std::move(at);
  return options;
}

// The published schedule for Kinetics-400.
GridFacts kinetics() { return {.frames = 32, .size = 224, .epochs = 239, .options = stages({94, 154, 196})}; }

std::vector<int64_t> ends_of(const std::vector<GridPhase>& phases) {
  std::vector<int64_t> ends;
  for (const GridPhase& phase : phases) ends.push_back(phase.end_epoch);
  return ends;
}

std::vector<int64_t> factors_of(const GridPhase& phase) {
  std::vector<int64_t> factors;
  for (const GridShape& shape : phase.cycle) factors.push_back(shape.batch_factor);
  return factors;
}

TEST(MultigridSchedule, HasThePublishedEpochs) {
  const std::vector<GridPhase> phases = multigrid_schedule(kinetics());
  EXPECT_THAT(ends_of(phases), ElementsAre(73, 110, 142, 158, 205, 228, 248, 259, 291, 308, 322, 329, 358));
  const GridShape shapes[] = {{8, 158, 8}, {16, 158, 4}, {16, 224, 2}, {32, 224, 1}};
  for (size_t i = 0; i < phases.size(); ++i) EXPECT_EQ(phases[i].base, shapes[i == 12 ? 3 : i % 4]) << i;
}

TEST(MultigridSchedule, HasTheBatchesOfTheShortCycle) {
  const std::vector<GridPhase> phases = multigrid_schedule(kinetics());
  EXPECT_THAT(factors_of(phases[0]), ElementsAre(16, 8, 8));
  EXPECT_THAT(factors_of(phases[1]), ElementsAre(8, 4, 4));
  EXPECT_THAT(factors_of(phases[2]), ElementsAre(8, 4, 2));
  EXPECT_THAT(factors_of(phases[3]), ElementsAre(4, 2, 1));
  EXPECT_EQ(phases[2].cycle[0].size, 112);
  EXPECT_EQ(phases[2].cycle[1].size, 158);
}

TEST(MultigridSchedule, ScalesTheRateByStageAndLongCycleAlone) {
  const std::vector<GridPhase> phases = multigrid_schedule(kinetics());
  for (size_t i = 0; i < 12; ++i) {
    const double batch[] = {8, 4, 2, 1};
    EXPECT_DOUBLE_EQ(phases[i].rate_factor, std::pow(0.1, static_cast<double>(i / 4)) * batch[i % 4]) << i;
    EXPECT_DOUBLE_EQ(phases[i].rate_factor_at(phases[i].end_epoch - 1), phases[i].rate_factor);
  }
  EXPECT_NEAR(phases[12].rate_factor_at(342), 0.01, 1e-15);  // fine-tuning runs from 329 to 358; its second half begins at 343
  EXPECT_NEAR(phases[12].rate_factor_at(343), 0.001, 1e-15);
  GridFacts facts = kinetics();
  facts.options.scale_lr = false;
  EXPECT_DOUBLE_EQ(multigrid_schedule(facts)[0].rate_factor, 1);
}

TEST(MultigridSchedule, WithoutALongCycleStretchesTheStages) {
  GridFacts facts = kinetics();
  facts.options.long_cycle = false;
  const std::vector<GridPhase> phases = multigrid_schedule(facts);
  EXPECT_THAT(ends_of(phases), ElementsAre(141, 231, 294, 358));
  EXPECT_THAT(factors_of(phases[3]), ElementsAre(4, 2, 1));
  EXPECT_NEAR(phases[3].rate_factor, 0.001, 1e-15);
}

TEST(MultigridSchedule, WithoutAShortCycleWeighsShapesByTheirBatch) {
  GridFacts facts = kinetics();
  facts.options.short_cycle = false;
  const std::vector<GridPhase> phases = multigrid_schedule(facts);
  EXPECT_THAT(factors_of(phases[0]), ElementsAre(8));
  // a = 8, 4, 2, 1: epochs of a stage are 8/15, 4/15, 2/15 and 1/15 of it, stretched by x.
  const double saving = 196 / (196.0 * 4 / 15), lengths = 196 + 43 / saving, x = 1.5 * 239 / lengths;
  EXPECT_EQ(phases[0].end_epoch, std::lround(x * 94 * 8 / 15));
  EXPECT_EQ(phases[3].end_epoch, std::lround(x * 94));
  EXPECT_EQ(phases.back().end_epoch, 358);
}

TEST(MultigridSchedule, LeavesTheFramesOfImages) {
  const std::vector<GridPhase> phases = multigrid_schedule({.frames = 1, .size = 224, .epochs = 90, .options = {}});
  ASSERT_EQ(phases.size(), 3u);
  EXPECT_EQ(phases[0].base, (GridShape{1, 112, 4}));
  EXPECT_EQ(phases[2].base, (GridShape{1, 224, 1}));
}

TEST(MultigridSchedule, RefusesWhatItCannotDivide) {
  EXPECT_THAT(refusal([] { multigrid_schedule({.frames = 18, .size = 32, .epochs = 30}); }), HasSubstr("clips.frames = 18"));
  EXPECT_THAT(refusal([] { multigrid_schedule({.frames = 16, .size = 32, .epochs = 2}); }), HasSubstr("train.epochs = 2"));
  EXPECT_THAT(refusal([] { multigrid_schedule({.frames = 16, .size = 32, .epochs = 0}); }), HasSubstr("train.epochs = 0"));
  EXPECT_THAT(refusal([] {
                multigrid_schedule({.frames = 16, .size = 32, .epochs = 30, .options = stages({9, 9})});
              }),
              HasSubstr("sampler.stages: 9"));
}

SamplerFacts clips(int64_t samples = 500) {
  return {.from = {0, samples}, .global_batch = 4, .seed = 3, .epochs = 12, .options = stages({6, 9}), .shape = {.frames = 16, .size = 32}};
}

TEST(Multigrid, DrawsAnEpochWithoutRepetition) {
  const auto sampler = make_sampler("multigrid", clips());
  int64_t step = 0;
  for (int64_t epoch = 0; epoch < 18; ++epoch) {
    std::set<int64_t> seen;
    std::vector<int64_t> sizes;
    for (; step < sampler->steps() && std::floor(sampler->epoch(step)) == static_cast<double>(epoch); ++step) {
      const Draw draw = sampler->draw(step);
      for (const int64_t id : draw.ids) EXPECT_TRUE(seen.insert(id).second) << epoch;
      sizes.push_back(static_cast<int64_t>(draw.ids.size()));
    }
    ASSERT_GE(sizes.size(), 3u) << epoch;
    EXPECT_LT(500 - static_cast<int64_t>(seen.size()), sizes[sizes.size() % 3]) << epoch;  // another batch would not fit
  }
  EXPECT_EQ(step, sampler->steps());
}

TEST(Multigrid, KeepsTheWorkOfAStep) {
  const auto sampler = make_sampler("multigrid", clips());
  const double full = 4.0 * 16 * 32 * 32;
  for (int64_t step = 0; step < sampler->steps(); ++step) {
    const Draw draw = sampler->draw(step);
    const double work = static_cast<double>(static_cast<int64_t>(draw.ids.size()) * draw.shape.frames * draw.shape.size * draw.shape.size);
    EXPECT_NEAR(work / full, 1, 0.1) << draw.shape.frames << " x " << draw.shape.size;
    EXPECT_EQ(draw.shape.stride_max, 16 / draw.shape.frames);
    EXPECT_EQ(draw.shape.norm_samples, 8);
  }
}

TEST(Multigrid, TakesFewerSteps) {
  SamplerFacts facts = clips(4000);
  facts.epochs = 120, facts.options.stages = {60, 90};
  const auto sampler = make_sampler("multigrid", facts);
  const double saving = 5.75, cycle = 7.0 / 3, stretch = 1.5 * 120 / (90 + 30 / saving * cycle);
  EXPECT_NEAR(120 * (4000 / 4.0) / static_cast<double>(sampler->steps()), saving / stretch, 0.05);
  EXPECT_THAT(sampler->schedule_text(), HasSubstr(std::to_string(sampler->steps()) + " steps"));
}

TEST(Multigrid, EvaluatesAFewTimesPerShapeAndAtItsEnd) {
  SamplerFacts facts = clips(4000);
  facts.epochs = 30, facts.options.stages = {15, 24, 27};
  const auto sampler = make_sampler("multigrid", facts);
  const std::vector<GridPhase> phases = multigrid_schedule({.frames = 16, .size = 32, .epochs = 30, .options = facts.options});
  std::vector<int64_t> times(phases.size());
  for (int64_t steps = 1; steps <= sampler->steps(); ++steps) {
    if (!sampler->evaluates_after(steps)) continue;
    const auto epoch = static_cast<int64_t>(std::floor(sampler->epoch(steps - 1)));
    EXPECT_EQ(std::floor(sampler->epoch(steps)), epoch + 1);  // only at the end of an epoch
    for (size_t i = 0; i < phases.size(); ++i) times[i] += epoch >= phases[i].first_epoch && epoch < phases[i].end_epoch;
  }
  for (const int64_t count : times) {
    EXPECT_GE(count, 1);
    EXPECT_LE(count, 3);
  }
  EXPECT_TRUE(sampler->evaluates_after(sampler->steps()));
  EXPECT_EQ(std::accumulate(times.begin(), times.end(), int64_t{0}) > static_cast<int64_t>(times.size()), true);
}

TEST(Multigrid, NamesBatchesOfTheLongCycleForPreciseStatistics) {
  const auto sampler = make_sampler("multigrid", clips());
  int64_t steps = 1;
  while (!sampler->evaluates_after(steps)) EXPECT_TRUE(sampler->norm_draws(steps++).empty());
  const std::vector<Draw> draws = sampler->norm_draws(steps);
  ASSERT_EQ(draws.size(), 200u);
  for (const Draw& draw : draws) {
    EXPECT_EQ(draw.shape.frames, 4);
    EXPECT_EQ(draw.shape.size, 23);
    EXPECT_EQ(draw.ids.size(), 32u);
    EXPECT_EQ(std::set<int64_t>(draw.ids.begin(), draw.ids.end()).size(), 32u);
  }
}

TEST(Multigrid, RefusesSetsSmallerThanABatch) {
  EXPECT_THAT(refusal([] { make_sampler("multigrid", clips(60)); }), HasSubstr("in batches of 64, and there are 60"));
}

}  // namespace
}  // namespace cairn::data
