#include "data/subset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/sampler.h"

namespace cairn::data {
namespace {

using testing::HasSubstr;

template <typename Make>
std::string refusal(Make make) {
  try {
    make();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Subset, EverythingBecomesTheTrainingSamples) {
  const Subset all = Subset().within({5, 3});
  ASSERT_EQ(all.size(), 3);
  EXPECT_EQ(all.id(0), 5);
  EXPECT_EQ(all.id(2), 7);
  EXPECT_EQ(all.hash(), Subset::of({5, 6, 7}).hash());
}

TEST(Subset, KeepsOrderAndWeights) {
  const Subset some = Subset::of({9, 2, 4}, {1, 0.5, 3});
  EXPECT_EQ(some.id(0), 9);
  EXPECT_EQ(some.weight(2), 0.5f);
  EXPECT_TRUE(some.weighted());
  EXPECT_FALSE(Subset::of({1, 2}).weighted());
}

TEST(Subset, HashTellsIdsOrderAndWeightsApart) {
  const uint64_t hash = Subset::of({1, 2}).hash();
  EXPECT_EQ(hash, Subset::of({1, 2}, {1, 1}).hash());
  EXPECT_NE(hash, Subset::of({2, 1}).hash());
  EXPECT_NE(hash, Subset::of({1, 3}).hash());
  EXPECT_NE(hash, Subset::of({1, 2}, {1, 2}).hash());
}

TEST(Subset, WhatCannotBeIsRefused) {
  EXPECT_THAT(refusal([] { Subset::of({3, 3}); }), HasSubstr("holds sample 3 twice"));
  EXPECT_THAT(refusal([] { Subset::of({3, 4}, {1}); }), HasSubstr("2 samples has 1 weights"));
  EXPECT_THAT(refusal([] { Subset::of({3}, {-1}); }), HasSubstr("sample 3 of a subset weighs -1"));
  EXPECT_THAT(refusal([] { Subset::of({3}).within({0, 3}); }), HasSubstr("holds sample 3: the training samples are 0 to 2"));
  EXPECT_THAT(refusal([] { Subset(0, 0).within({0, 3}); }), HasSubstr("without samples"));
}

TEST(Subset, SamplersDrawFromItAlone) {
  SamplerOptions whole;
  whole.ratio = 1;
  for (const std::string name : {"shuffled", "sequential", "rs2"}) {
    const auto sampler = make_sampler(name, {.from = Subset::of({7, 3, 20}), .global_batch = 3, .steps = 4, .seed = 1, .options = whole});
    for (int64_t step = 0; step < 4; ++step) EXPECT_THAT(sampler->ids(step), testing::UnorderedElementsAre(3, 7, 20)) << name;
  }
}

TEST(Subset, GivesThoseAmongSomeSamples) {
  const Subset run = Subset(10, 20).among({25, 100});
  EXPECT_EQ(run.size(), 5);
  EXPECT_EQ(run.id(0), 25);
  EXPECT_EQ(Subset(10, 20).among({30, 5}).size(), 0);
  const Subset some = Subset::of({7, 3, 9}, {1, 2, 3}).among({4, 6});
  ASSERT_EQ(some.size(), 2);
  EXPECT_EQ(some.id(0), 7);
  EXPECT_EQ(some.id(1), 9);
  EXPECT_EQ(some.weight(9), 3);
}

}  // namespace
}  // namespace cairn::data
