#include "unlearn/partition.h"

#include <set>

#include <gtest/gtest.h>

namespace cairn::unlearn {
namespace {

TEST(UnlearnPartition, PutsEveryRecordIntoOneSliceAndKnowsWhere) {
  for (const int64_t records : {12, 13, 97, 100}) {
    const Partition partition(records, 3, 4, 7);
    std::set<int64_t> seen;
    int64_t least = records, most = 0, before = records;
    for (int64_t shard = 0; shard < 3; ++shard)
      for (int64_t slice = 0; slice < 4; ++slice) {
        const std::vector<int64_t> all = partition.records_in({shard, slice});
        for (const int64_t record : all) {
          EXPECT_TRUE(seen.insert(record).second) << record;
          EXPECT_EQ(partition.place_of(record), (Place{shard, slice}));
        }
        least = std::min(least, static_cast<int64_t>(all.size())), most = std::max(most, static_cast<int64_t>(all.size()));
        EXPECT_LE(static_cast<int64_t>(all.size()), before);  // the first ones get the remainder
        before = static_cast<int64_t>(all.size());
      }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), records);
    EXPECT_LE(most - least, 1);
  }
}

TEST(UnlearnPartition, IsAFunctionOfItsSeed) {
  EXPECT_EQ(Partition(50, 2, 5, 3).records_in({1, 2}), Partition(50, 2, 5, 3).records_in({1, 2}));
  EXPECT_NE(Partition(50, 2, 5, 3).records_in({1, 2}), Partition(50, 2, 5, 4).records_in({1, 2}));
}

}  // namespace
}  // namespace cairn::unlearn
