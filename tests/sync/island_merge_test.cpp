// Merging the islands' versions of a tensor, with and without a background thread.
#include <array>
#include <mutex>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/group.h"
#include "kernels/device.h"
#include "sync/islands/link.h"
#include "sync/islands/merge.h"
#include "sync/toy_islands.h"

namespace cairn::sync {
namespace {

constexpr int64_t kLong = 2'500'001;  // fp32 does not fit into one piece of a message

at::Tensor values_of(int island, int32_t part, int64_t count) {
  at::Tensor values = at::empty({count}, at::kFloat);
  base::Random(3)
      .for_index(static_cast<uint64_t>(island))
      .for_index(static_cast<uint64_t>(part))
      .fill_normal({values.mutable_data_ptr<float>(), static_cast<size_t>(count)});
  return values;
}

struct Came {
  at::Tensor merged, as_sent;
  int64_t bytes = 0;
  double note = 0;
};

// Two concurrent rounds on this many islands, as each island sees them.
using Both = std::array<Came, 2>;
std::vector<Both> merge_on(int islands, const std::string& wire_name, MergeKind rule, int64_t count, bool in_background,
                           at::Device device = at::kCPU) {
  std::vector<Both> all(static_cast<size_t>(islands));
  harness::on_ranks(islands, [&](comm::World& world) {
    const std::unique_ptr<const Compressor> compressor = make_compressor({wire_name});
    const MergeRule how{rule};
    IslandMessenger messenger({in_world_link(world.everyone()), 5, int64_t{64} << 20, /*reuse_buffers=*/in_background});
    Quorum quorum(messenger, {.timeout = std::chrono::seconds(60), .minority_timeout = std::chrono::seconds(60)});
    const auto begin = [&](int64_t step, int32_t part, const at::Tensor& values) {
      return std::make_unique<IslandMerge>(IslandMerge::Parts{.quorum = quorum,
                                                              .compressor = *compressor,
                                                              .rule = how,
                                                              .step = step,
                                                              .part = part,
                                                              .weight = 1.0 + world.rank(),
                                                              .note = 2.0 * world.rank(),
                                                              .in_background = in_background},
                                           values.to(device));
    };
    begin(6, 0, values_of(world.rank(), 10, count))->wait();  // its buffers are reused by the next ones
    quorum.close(6);
    std::vector<std::unique_ptr<IslandMerge>> flights;
    for (const int32_t part : {0, 1}) flights.push_back(begin(7, part, values_of(world.rank(), part, count)));
    for (size_t part : {0, 1}) {
      Came& came = all[static_cast<size_t>(world.rank())][part];
      flights[part]->progress();
      came.merged = flights[part]->wait().cpu();
      came.as_sent = flights[part]->as_sent().cpu();
      came.bytes = flights[part]->bytes_sent();
      came.note = flights[part]->note();
      EXPECT_EQ(flights[part]->included(), world.size());
    }
  });
  return all;
}

TEST(IslandMerge, GivesTheSameResultInTheBackground) {
  // From three islands on with fp32, and from nine on otherwise, each island owns a chunk.
  for (const int islands : {2, 3})
    for (const std::string wire : {"fp32", "bf16", "e3m0", "topk"})
      for (const int64_t count : {int64_t{1}, int64_t{1009}, wire == "fp32" ? kLong : int64_t{70'001}}) {
        const std::string what = fmt::format("{} islands, {}, {} values", islands, wire, count);
        const std::vector<Both> here = merge_on(islands, wire, MergeKind::mean, count, false),
                                there = merge_on(islands, wire, MergeKind::mean, count, true);
        for (size_t island = 0; island < here.size(); ++island)
          for (size_t part : {0, 1}) {
            const Came &a = here[island][part], &b = there[island][part];
            ASSERT_TRUE(a.merged.defined() && b.merged.defined()) << what;
            EXPECT_TRUE(at::equal(b.merged, here[0][part].merged)) << what;  // on all islands
            EXPECT_TRUE(at::equal(a.merged, b.merged)) << what;
            EXPECT_TRUE(at::equal(a.as_sent, b.as_sent)) << what;
            EXPECT_EQ(a.bytes, b.bytes) << what;
            EXPECT_GT(a.bytes, 0) << what;
            EXPECT_EQ(a.note, static_cast<double>(islands - 1)) << what;
            EXPECT_EQ(b.note, a.note) << what;
          }
      }
}

TEST(IslandMerge, IsTheMeanByWeight) {
  for (const bool in_background : {false, true}) {
    const std::vector<Both> all = merge_on(3, "fp32", MergeKind::mean, kLong, in_background);
    for (size_t part : {0, 1}) {
      at::Tensor sum = at::zeros({kLong}, at::kDouble);
      for (int island = 0; island < 3; ++island)
        sum.add_(values_of(island, static_cast<int32_t>(part), kLong).to(at::kDouble), 1.0 + island);
      EXPECT_LT((all[0][part].merged.to(at::kDouble) - sum / 6).abs().max().item<double>(), 1e-6);
      EXPECT_TRUE(at::equal(all[2][part].as_sent, values_of(2, static_cast<int32_t>(part), kLong)));
    }
  }
}

// Bitwise as on a CPU: islands on different machines must get the same result.
TEST(IslandMergeOnCuda, MatchesTheCpu) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  for (const std::string wire : {"fp32", "bf16", "e3m0", "int8", "topk"})
    for (const int64_t count : {int64_t{1}, kLong})
      for (const int islands : {2, 3}) {
        const std::vector<Both> here = merge_on(islands, wire, MergeKind::mean, count, false);
        const std::vector<Both> there = merge_on(islands, wire, MergeKind::mean, count, true, at::Device(at::kCUDA, 0));
        for (size_t island = 0; island < here.size(); ++island)
          for (size_t part : {0, 1}) {
            const Came &a = here[island][part], &b = there[island][part];
            EXPECT_TRUE(at::equal(a.as_sent, b.as_sent)) << wire << ", " << count;
            EXPECT_TRUE(at::equal(a.merged, b.merged)) << wire << ", " << count << ", " << islands;
            EXPECT_EQ(a.bytes, b.bytes) << wire << ", " << count;
          }
      }
}

// An island that ends neither waits for the others nor leaves a thread behind that reads freed memory.
TEST(IslandMerge, MayBeGivenUpInTheBackground) {
  harness::on_ranks(2, [&](comm::World& world) {
    const std::unique_ptr<const Compressor> compressor = make_compressor({"fp32"});
    const MergeRule how;
    IslandMessenger messenger({in_world_link(world.everyone()), 5, int64_t{64} << 20});
    Quorum quorum(messenger, {.timeout = std::chrono::seconds(60), .minority_timeout = std::chrono::seconds(60)});
    at::Tensor values = values_of(world.rank(), 0, kLong);
    IslandMerge given_up({.quorum = quorum, .compressor = *compressor, .rule = how, .step = 1, .in_background = true}, values);
    values.reset();
  });
}

TEST(IslandMerge, RulesOfOrderWorkInTheBackgroundToo) {
  const std::vector<Both> here = merge_on(3, "bf16", MergeKind::median, 5003, false),
                          there = merge_on(3, "bf16", MergeKind::median, 5003, true);
  for (size_t island = 0; island < 3; ++island)
    for (size_t part : {0, 1}) EXPECT_TRUE(at::equal(here[island][part].merged, there[island][part].merged));
  EXPECT_FALSE(at::equal(here[0][0].merged, here[0][1].merged));
}

}  // namespace
}  // namespace cairn::sync
