#include "data/sampler.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "data/batch_split.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using Ids = std::vector<int64_t>;

const std::vector<std::string> kWholeEpochs{"shuffled", "sequential"};  // samplers that visit every sample once an epoch

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
  for (const std::string& name : kWholeEpochs) {
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
      const BatchRange share = replica_range(10, replica, replicas);
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

SamplerFacts mixed(int64_t batch) {
  return {.from = {0, 110}, .global_batch = batch, .steps = 50, .seed = 3, .streams = {{{0, 10}, 1}, {{10, 100}, 3}}};
}

TEST(Samplers, DrawFromStreamsByTheirWeights) {
  for (const std::string& name : kWholeEpochs) {
    const auto sampler = make_sampler(name, mixed(8));
    const Ids all = drawn(*sampler, 4000);
    EXPECT_NEAR(std::count_if(all.begin(), all.end(), [](int64_t id) { return id < 10; }), 1000, 3) << name;
    Ids streams[2];
    for (const int64_t id : all) streams[id < 10 ? 0 : 1].push_back(id);
    for (const int stream : {0, 1}) {  // each goes through all of its samples, then again
      const int64_t size = stream == 0 ? 10 : 100;
      for (int64_t number = 0; number < 9; ++number) {
        const Ids ids = epoch(streams[stream], number, size);
        EXPECT_EQ(static_cast<int64_t>(std::set<int64_t>(ids.begin(), ids.end()).size()), size) << name;
      }
    }
    const std::vector<int64_t> positions = sampler->positions(500);
    EXPECT_EQ(positions, (Ids{static_cast<int64_t>(streams[0].size()), static_cast<int64_t>(streams[1].size())}));
  }
}

TEST(Samplers, OfStreamsDrawTheSameSamplesWhateverTheBatchAndRanks) {
  for (const std::string& name : kWholeEpochs) {
    const Ids all = drawn(*make_sampler(name, mixed(1)), 400);
    for (const int64_t batch : {2, 8, 50}) EXPECT_EQ(drawn(*make_sampler(name, mixed(batch)), 400), all) << name;
    // 3 steps on 2 ranks, then a new process on 5 ranks: the very next samples.
    Ids together;
    for (int64_t step = 0; step < 8; ++step) {
      const auto sampler = make_sampler(name, mixed(50));
      const int replicas = step < 3 ? 2 : 5;
      for (int replica = 0; replica < replicas; ++replica) {
        const Ids global = sampler->ids(step);
        const BatchRange share = replica_range(50, replica, replicas);
        together.insert(together.end(), global.begin() + share.first, global.begin() + share.first + share.count);
      }
    }
    EXPECT_EQ(together, all) << name;
  }
}

TEST(Samplers, DropStreamsThatASubsetLeavesEmpty) {
  SamplerFacts facts = mixed(4);
  facts.from = Subset::of({70, 30, 50});
  EXPECT_EQ(make_sampler("sequential", facts)->ids(0), (Ids{70, 30, 50, 70}));
  facts.from = Subset::of({70, 5, 30});
  const Ids ids = make_sampler("sequential", facts)->ids(0);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 5), 1);
}

TEST(Samplers, TellHowFarTheRunIs) {
  for (const std::string& name : kWholeEpochs) {
    const auto sampler = make_sampler(name, {.from = {0, 40}, .global_batch = 10, .steps = 16, .seed = 1});
    EXPECT_EQ(sampler->progress(0), 0.0);
    EXPECT_EQ(sampler->progress(4), 0.25);
    EXPECT_EQ(sampler->progress(16), 1.0);
    EXPECT_EQ(sampler->progress(99), 1.0);
    EXPECT_EQ(sampler->epoch(6), 1.5);
    EXPECT_EQ(sampler->positions(6), Ids{60});
  }
}

TEST(Samplers, RefuseAnUnknownNameAndGuessWhatWasMeant) {
  EXPECT_EQ(refusal([] { make_sampler("shufled", {.from = {0, 1}}); }), "unknown data.sampler \"shufled\": did you mean \"shuffled\"?");
}

TEST(Samplers, EndWithTheirEpochs) {
  for (const std::string& name : kWholeEpochs) {
    EXPECT_EQ(make_sampler(name, {.from = {0, 45}, .global_batch = 10, .seed = 1, .epochs = 2})->steps(), 9) << name;
    EXPECT_EQ(make_sampler(name, {.from = {0, 45}, .global_batch = 10, .seed = 1, .epochs = 0.5})->steps(), 3) << name;
  }
}

}  // namespace
}  // namespace cairn::data
