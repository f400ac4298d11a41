// The time of an all-scan on a simulated network where the links of a rank share its card, against the formulas of all_scan.cpp and against
// the other ways to hand states along; and what happens when a rank is lost.
#include <algorithm>

#include <gtest/gtest.h>

#include "comm/affine_map.h"
#include "comm/collectives/choose_algorithm.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kRows = 512, kWidth = 256;  // 4 heads of 128 x 256: 512 KiB

harness::Options shaped() {
  harness::Options options;
  options.link = {.latency = 1ms, .bytes_per_s = 10e6, .jitter = 0, .contention = LinkModel::Contention::per_nic};
  return options;
}

// The virtual time until the last of the ranks is done.
double seconds_of(int ranks, const std::function<Work(World&, std::vector<float>&, std::vector<float>&, std::vector<float>&)>& act) {
  std::vector<double> ended(static_cast<size_t>(ranks));
  harness::on_ranks(ranks, shaped(), [&](World& world) {
    std::vector<float> before(kRows * kWidth), state(kRows * kWidth, 1.0f), factors(kRows, 0.5f);
    const auto begun = world.clock().now();
    act(world, before, state, factors).wait();
    ended[static_cast<size_t>(world.rank())] = std::chrono::duration<double>(world.clock().now() - begun).count();
  });
  return *std::max_element(ended.begin(), ended.end());
}

double scan_seconds(int ranks, int64_t blocks) {
  return seconds_of(ranks, [blocks](World& world, std::vector<float>& before, std::vector<float>& state, std::vector<float>& factors) {
    return world.everyone().all_scan({before.data(), kRows * kWidth, Dtype::f32}, {state.data(), kRows * kWidth, Dtype::f32},
                                     make_diagonal_map(factors.data(), kRows, kWidth, Dtype::f32), {.blocks = blocks},
                                     {Purpose::activation, "states"});
  });
}

double gather_seconds(int ranks) {
  std::vector<float> all;
  return seconds_of(ranks, [ranks](World& world, std::vector<float>& before, std::vector<float>& state, std::vector<float>&) {
    before.resize(static_cast<size_t>(ranks) * kRows * kWidth);
    return world.everyone().all_gather({before.data(), ranks * kRows * kWidth, Dtype::f32}, {state.data(), kRows * kWidth, Dtype::f32},
                                       {Purpose::activation, "states"});
  });
}

TEST(AllScan, IsThreeTimesFasterThanAnAllGatherAndThanAPlainChain) {
  const double scan = scan_seconds(8, 16);
  EXPECT_GE(gather_seconds(8) / scan, 3);
  EXPECT_GE(scan_seconds(8, 1) / scan, 3);
}

TEST(AllScan, TakesTheTimeOfTheFormula) {
  const double bytes = 4.0 * kRows * kWidth;
  for (const int ranks : {2, 4, 8}) {
    for (const int64_t blocks : {1, 4, 16}) {
      const double paper = static_cast<double>(blocks + ranks - 2) * (bytes / static_cast<double>(blocks) / 10e6 + 1e-3);
      const double found = scan_seconds(ranks, blocks);
      EXPECT_NEAR(found / paper, 1, 0.25) << ranks << " ranks, " << blocks << " blocks";
      const LinkFacts facts{.latency = 1ms, .bytes_per_s = 10e6};
      const double ours = std::chrono::duration<double>(scan_cost(4 * kRows * kWidth, ranks, blocks, facts)).count();
      EXPECT_NEAR(found / ours, 1, 0.05) << ranks << " ranks, " << blocks << " blocks";
    }
  }
}

TEST(AllScan, ChoosesBlocksThatAreNoWorseThanAnyOtherNumber) {
  const double chosen = scan_seconds(8, 0);
  for (const int64_t blocks : {1, 2, 8, 16, 32}) EXPECT_LE(chosen, 1.05 * scan_seconds(8, blocks)) << blocks;
  const LinkFacts facts{.latency = 1ms, .bytes_per_s = 10e6};
  EXPECT_EQ(choose_scan_blocks(1 << 30, 2, facts), 1) << "one hop: nothing to pipeline";
  EXPECT_EQ(choose_scan_blocks(32 << 10, 64, facts), 2) << "blocks have 16 KiB at least";
  EXPECT_EQ(choose_scan_blocks(1 << 30, 64, facts), 64);
}

TEST(AllScan, NamesTheLostRankToTheRanksBehindIt) {
  harness::Options options;
  options.expect_errors = true;
  const harness::Run run = harness::on_ranks(4, options, harness::Faults().lose({.rank = 1, .before_collective = 0}), [](World& world) {
    std::vector<float> before(64), state(64), factors(8, 1.0f);
    world.everyone()
        .all_scan({before.data(), 64, Dtype::f32}, {state.data(), 64, Dtype::f32}, make_diagonal_map(factors.data(), 8, 8, Dtype::f32), {},
                  {Purpose::activation, "states"})
        .wait();
  });
  ASSERT_EQ(run.faults_fired, 1);
  for (const int survivor : {2, 3}) {
    EXPECT_EQ(run.error_on(survivor).kind(), Error::Kind::lost_peer);
    EXPECT_EQ(run.error_on(survivor).peer(), 1);
  }
}

}  // namespace
}  // namespace cairn::comm
