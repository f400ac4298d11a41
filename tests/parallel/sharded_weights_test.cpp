// What units of parameters that are brought together for a pass take, beside what is kept.
#include "parallel/state/sharded_weights.h"

#include <gtest/gtest.h>

#include "comm/group.h"
#include "harness/ranks.h"
#include "kernels/aten.h"

namespace cairn::parallel {
namespace {

const std::vector<int64_t> kSizes{31, 5, 11, 5, 11, 29};

ShardedWeights::Parts gathering(comm::World& world) {
  ShardedWeights::Parts parts;
  for (const int64_t elements : kSizes) {
    const auto i = static_cast<int64_t>(parts.layout.pieces.size());
    const int64_t offset = parts.layout.elements;
    parts.layout.append(std::to_string(i), {elements});
    parts.units.push_back(
        {.first = i, .last = i + 1, .offset = offset, .elements = elements, .counts = comm::even_counts(elements, world.size())});
  }
  parts.placements.resize(kSizes.size());
  parts.shard_group = &world.everyone();
  parts.gathers = true;
  parts.master = parts.compute = at::TensorOptions().dtype(at::kFloat);
  return parts;
}

TEST(GatheredMemory, IsThatOfTwoUnitsWhateverTheirSizes) {
  harness::on_ranks(2, [](comm::World& world) {
    ShardedWeights weights(gathering(world));
    const auto n = static_cast<int32_t>(kSizes.size());
    for (int32_t i = 0; i < n; ++i) weights.shard(i).fill_(static_cast<float>(i));
    const auto visit = [&](int32_t i, int32_t next) {
      const mesh::ParamId here{i}, there{next};
      weights.fetch({&here, 1});
      if (next >= 0 && next < n) weights.fetch({&there, 1});
      EXPECT_TRUE(weights.get(here).eq(static_cast<float>(i)).all().item<bool>());
      weights.release({&here, 1});
    };
    for (int step = 0; step < 2; ++step) {
      for (int32_t i = 0; i < n; ++i) visit(i, i + 1);
      for (int32_t i = n; i-- > 0;) visit(i, i - 1);
    }
    EXPECT_LE(weights.peak_gathered_bytes(), 4 * (29 + 11));
    EXPECT_GE(weights.peak_gathered_bytes(), 4 * (31 + 5));
  });
}

TEST(GatheredMemory, FewBuffersWaitForTheNext) {
  harness::on_ranks(2, [](comm::World& world) {
    ShardedWeights weights(gathering(world));
    std::vector<mesh::ParamId> all;
    for (int32_t i = 0; i < static_cast<int32_t>(kSizes.size()); ++i) all.push_back({i});
    weights.fetch(all);
    EXPECT_EQ(weights.gathered_bytes(), 4 * (31 + 5 + 11 + 5 + 11 + 29));
    weights.release(all);
    EXPECT_EQ(weights.gathered_bytes(), 4 * (11 + 29));  // two, that are used again
    EXPECT_EQ(weights.peak_gathered_bytes(), 4 * (31 + 5 + 11 + 5 + 11 + 29));
  });
}

}  // namespace
}  // namespace cairn::parallel
