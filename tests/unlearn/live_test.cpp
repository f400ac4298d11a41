// What may be served, as a function of deletions and artifacts.
#include "unlearn/live.h"

#include <gtest/gtest.h>

namespace cairn::unlearn {
namespace {

// Two shards of three slices in two orders.
StoreSpec spec(Prefix prefix = Prefix::longest) {
  StoreSpec made;
  made.prefix = prefix, made.shards = 2, made.slices = 3, made.records = 60;
  made.orders = {{{0, 1, 2}, {1, 2, 0}}, {{0, 1, 2}, {1, 2, 0}}};
  made.layers = {{2}, {1}, {0}};
  return made;
}

const DeletedCounts kNone{{0, 0, 0}, {0, 0, 0}};

// The artifacts of an order's beginning, trained after these deletions.
void add_order(std::map<std::string, Artifact>& all, int64_t shard, const Order& order, size_t stages,
               const DeletedCounts& deleted = kNone) {
  Artifact before;
  for (size_t stage = 0; stage < stages; ++stage) {
    Artifact one{.name = live_name(shard, Order(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(stage) + 1), deleted)};
    one.checksum = 100 + all.size();
    if (stage > 0) one.parent = to_text(before.name), one.parent_checksum = before.checksum;
    all[to_text(one.name)] = one;
    before = one;
  }
}

std::map<std::string, Artifact> whole_store() {
  std::map<std::string, Artifact> all;
  const StoreSpec made = spec();
  for (const int64_t shard : {0, 1})
    for (const Order& order : made.orders[0]) add_order(all, shard, order, 3);
  return all;
}

std::vector<size_t> lengths_of(const LiveShard& shard) {
  std::vector<size_t> lengths;
  for (const LiveOrder& one : shard.orders) lengths.push_back(one.chain.size());
  return lengths;
}

TEST(LiveShards, ServeTheFirstOfTheLongestOrders) {
  const std::vector<LiveShard> live = live_shards(spec(), kNone, whole_store());
  EXPECT_EQ(lengths_of(live[0]), (std::vector<size_t>{3, 3}));
  EXPECT_EQ(live[0].serving, 0);
  EXPECT_EQ(live[0].length, 3);
}

TEST(LiveShards, ADeletionCutsEveryOrderWhereItsSliceComesAndNoOtherShard) {
  const std::vector<LiveShard> live = live_shards(spec(), {{1, 0, 0}, {0, 0, 0}}, whole_store());
  EXPECT_EQ(lengths_of(live[0]), (std::vector<size_t>{0, 2}));
  EXPECT_EQ(live[0].serving, 1);
  EXPECT_EQ(lengths_of(live[1]), (std::vector<size_t>{3, 3}));
}

TEST(LiveShards, AShardWithoutALiveOrderAbstains) {
  const std::vector<LiveShard> live = live_shards(spec(), {{1, 1, 0}, {0, 0, 0}}, whole_store());
  EXPECT_EQ(lengths_of(live[0]), (std::vector<size_t>{0, 0}));
  EXPECT_EQ(live[0].serving, -1);
}

TEST(LiveShards, WhatWasTrainedWithoutTheRecordIsLive) {
  const DeletedCounts deleted{{1, 0, 0}, {0, 0, 0}};
  std::map<std::string, Artifact> all = whole_store();
  add_order(all, 0, {0, 1, 2}, 2, deleted);
  EXPECT_EQ(lengths_of(live_shards(spec(), deleted, all)[0]), (std::vector<size_t>{2, 2}));
  // Another record of that slice, and all of it is lost again.
  EXPECT_EQ(lengths_of(live_shards(spec(), {{2, 0, 0}, {0, 0, 0}}, all)[0]), (std::vector<size_t>{0, 2}));
}

TEST(LiveShards, AStageUponAnotherParentIsNotLive) {
  std::map<std::string, Artifact> all = whole_store();
  all["s0-0.1"].parent_checksum = 1;
  EXPECT_EQ(lengths_of(live_shards(spec(), kNone, all)[0]), (std::vector<size_t>{1, 3}));
  all = whole_store();
  all["s0-0.1"].parent = "s0-1";
  EXPECT_EQ(lengths_of(live_shards(spec(), kNone, all)[0]), (std::vector<size_t>{1, 3}));
  all = whole_store();
  all.erase("s0-0");
  EXPECT_EQ(lengths_of(live_shards(spec(), kNone, all)[0]), (std::vector<size_t>{0, 3}));
}

TEST(LiveShards, ValidationDecidesBetweenEquallyLongOrders) {
  std::map<std::string, Artifact> all = whole_store();
  all["s0-1.2.0"].validation = 2;
  EXPECT_EQ(live_shards(spec(), kNone, all)[0].serving, 1);  // what was not measured is worse
  all["s0-0.1.2"].validation = 2.5;
  EXPECT_EQ(live_shards(spec(), kNone, all)[0].serving, 1);
  all["s0-0.1.2"].validation = 1.5;
  EXPECT_EQ(live_shards(spec(), kNone, all)[0].serving, 0);
}

TEST(LiveShards, TheBestPrefixMayBeAShortOne) {
  std::map<std::string, Artifact> all = whole_store();
  all["s0-0.1.2"].validation = 2;
  all["s0-1"].validation = 1;
  const LiveShard best = live_shards(spec(Prefix::best), kNone, all)[0];
  EXPECT_EQ(best.serving, 1);
  EXPECT_EQ(best.length, 1);
  EXPECT_EQ(live_shards(spec(), kNone, all)[0].length, 3);
}

TEST(ArtifactName, IsReadBackAndNothingElseIs) {
  const ArtifactName name{.shard = 3, .slices = {2, 0, 10}, .excluded = 4};
  EXPECT_EQ(to_text(name), "s3-2.0.10-w4");
  EXPECT_EQ(parse_artifact_name("s3-2.0.10-w4"), name);
  EXPECT_EQ(parse_artifact_name("s0-1"), (ArtifactName{.shard = 0, .slices = {1}, .excluded = 0}));
  for (const char* other :
       {"", "s", "s0", "s0-", "s0-1.", "s0-1.1", "s0-1-w0", "s0-1-w", "s0-01", "s0--1", "x0-1", "s0-1+ab", "s0-1 ", "../s0-1"})
    EXPECT_EQ(parse_artifact_name(other), std::nullopt) << other;
  EXPECT_EQ(artifact_of_work("work/s0-1.0+3f")->slices, (Order{1, 0}));
  EXPECT_TRUE(name.depends_on(3, 10));
  EXPECT_FALSE(name.depends_on(3, 1));
  EXPECT_FALSE(name.depends_on(0, 2));
}

}  // namespace
}  // namespace cairn::unlearn
