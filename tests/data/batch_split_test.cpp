#include "data/batch_split.h"

#include <gtest/gtest.h>

namespace cairn::data {
namespace {

TEST(ReplicaRange, CutsTheBatchIntoPartsThatDifferByOneAtMost) {
  for (const int64_t samples : {0, 1, 2, 3, 7, 10, 64, 101}) {
    for (const int replicas : {1, 2, 3, 4, 7, 8, 256}) {
      int64_t next = 0;
      for (int replica = 0; replica < replicas; ++replica) {
        const BatchRange share = replica_range(samples, replica, replicas);
        EXPECT_EQ(share.first, next);
        EXPECT_GE(share.count, samples / replicas);
        EXPECT_LE(share.count, (samples + replicas - 1) / replicas);
        next += share.count;
      }
      EXPECT_EQ(next, samples);
    }
  }
}

TEST(ReplicaRange, LeavesSomeReplicasEmptyWhereThereAreFewerSamples) {
  EXPECT_EQ(replica_range(2, 0, 4), (BatchRange{0, 0}));
  EXPECT_EQ(replica_range(2, 1, 4), (BatchRange{0, 1}));
  EXPECT_EQ(replica_range(2, 2, 4), (BatchRange{1, 0}));
  EXPECT_EQ(replica_range(2, 3, 4), (BatchRange{1, 1}));
}

TEST(ReplicaRange, DividesTenAmongThree) {
  EXPECT_EQ(replica_range(10, 0, 3), (BatchRange{0, 3}));
  EXPECT_EQ(replica_range(10, 1, 3), (BatchRange{3, 3}));
  EXPECT_EQ(replica_range(10, 2, 3), (BatchRange{6, 4}));
}

TEST(MicroBatches, EndWithWhatIsLeft) {
  EXPECT_EQ(micro_batches(7, 3), (std::vector<BatchRange>{{0, 3}, {3, 3}, {6, 1}}));
  EXPECT_EQ(micro_batches(6, 3), (std::vector<BatchRange>{{0, 3}, {3, 3}}));
  EXPECT_EQ(micro_batches(2, 3), (std::vector<BatchRange>{{0, 2}}));
  EXPECT_TRUE(micro_batches(0, 3).empty());
}

}  // namespace
}  // namespace cairn::data
