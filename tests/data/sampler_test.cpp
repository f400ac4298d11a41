#include "data/sampler.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "data/shard.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using Ids = std::vector<int64_t>;

// The first `draws` sample ids of a run.
Ids drawn(const Sampler& sampler, int64_t draws) {
  Ids all;
  for (int64_t step = 0; static_cast<int64_t>(all.size()) < draws; ++step) {
    const Ids ids = sampler.ids(step);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  all.resize(draws);
  return all;
}

Ids epoch(const Ids& all, int64_t number, int64_t samples) {
  return {all.begin() + number * samples, all.begin() + (number + 1) * samples};
}

TEST(Samplers, TakeEverySampleExactlyOnceAnEpoch) {
  for (const std::string& name : sampler_names()) {
    for (const int64_t samples : {1, 2, 7, 64, 101}) {
      for (const int64_t batch : {1, 5, 8, 250}) {  // batches that straddle epochs, and some longer than several
        const auto sampler = make_sampler(name, {.from = {10, samples}, .global_batch = batch, .steps = 9, .seed = 3});
        const Ids all = drawn(*sampler, 3 * samples);
        for (int64_t number = 0; number < 3; ++number) {
          const Ids ids = epoch(all, number, samples);
          const std::set<int64_t> seen(ids.begin(), ids.end());
          EXPECT_EQ(static_cast<int64_t>(seen.size()), samples) << name;
          EXPECT_EQ(*seen.begin(), 10) << name;
          EXPECT_EQ(*seen.rbegin(), 10 + samples - 1) << name;
        }
      }
    }
  }
}

TEST(Shuffled, OrdersEachEpochAnewAndBySeed) {
  const auto run = [](uint64_t seed) {
    return drawn(*make_sampler("shuffled", {.from = {0, 101}, .global_batch = 8, .steps = 9, .seed = seed}), 202);
  };
  Ids sorted(101);
  std::iota(sorted.begin(), sorted.end(), 0);
  EXPECT_NE(epoch(run(1), 0, 101), sorted);
  EXPECT_NE(epoch(run(1), 0, 101), epoch(run(1), 1, 101));
  EXPECT_NE(run(1), run(2));
  EXPECT_EQ(run(1), run(1));
}

TEST(Shuffled, DrawsTheSameSamplesWhateverTheBatch) {
  const auto run = [](int64_t batch) {
    return drawn(*make_sampler("shuffled", {.from = {0, 37}, .global_batch = batch, .steps = 9, .seed = 1}), 100);
  };
  EXPECT_EQ(run(1), run(8));
  EXPECT_EQ(run(8), run(50));
}

TEST(Shuffled, GivesTheRanksTogetherTheGlobalBatch) {
  const auto sampler = make_sampler("shuffled", {.from = {0, 101}, .global_batch = 10, .steps = 9, .seed = 1});
  for (const int replicas : {1, 2, 3, 4, 8, 16}) {
    Ids together;
    for (int replica = 0; replica < replicas; ++replica) {
      const Ids global = sampler->ids(5);  // each rank asks on its own
      const Share share = share_of(10, replica, replicas);
      together.insert(together.end(), global.begin() + share.first, global.begin() + share.first + share.count);
    }
    EXPECT_EQ(together, sampler->ids(5)) << replicas;
  }
}

TEST(Sequential, FollowsTheCorpus) {
  const auto sampler = make_sampler("sequential", {.from = {3, 4}, .global_batch = 3, .steps = 9, .seed = 1});
  EXPECT_EQ(sampler->ids(0), (Ids{3, 4, 5}));
  EXPECT_EQ(sampler->ids(1), (Ids{6, 3, 4}));
}

TEST(Samplers, TellHowFarTheRunIs) {
  for (const std::string& name : sampler_names()) {
    const auto sampler = make_sampler(name, {.from = {0, 40}, .global_batch = 10, .steps = 16, .seed = 1});
    EXPECT_EQ(sampler->progress(0), 0.0);
    EXPECT_EQ(sampler->progress(4), 0.25);
    EXPECT_EQ(sampler->progress(16), 1.0);
    EXPECT_EQ(sampler->progress(99), 1.0);
    EXPECT_EQ(sampler->epoch(6), 1.5);
  }
}

TEST(Samplers, RefuseAnUnknownNameAndGuessWhatWasMeant) {
  EXPECT_EQ(refusal([] { make_sampler("shufled", {.from = {0, 1}}); }), "unknown data.sampler \"shufled\": did you mean \"shuffled\"?");
}

}  // namespace
}  // namespace cairn::data
