#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "mesh/flat_layout.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

// Parameters whose gradients are rank + 1 everywhere, in one flat buffer.
struct Fixture {
  mesh::FlatLayout layout;
  at::Tensor flat;
  mesh::NamedTensors gradients;
  explicit Fixture(int rank) {
    layout.append("first", {3});
    layout.append("second", {2, 2});
    layout.append("third", {5});
    flat = at::full({layout.elements}, static_cast<float>(rank + 1));
    gradients = layout.views(flat);
  }
};

// One step: gradients announced from the last to the first, as backward does.
at::Tensor one_step(comm::World& world, double bucket_mib, std::vector<int64_t> order = {2, 1, 0}) {
  const Fixture fixture(world.rank());
  const SyncOptions options{.bucket_mib = bucket_mib};
  const auto rule = make_sync(options, {world.everyone(), world.alone(), fixture.gradients, fixture.gradients});
  for (int64_t index : order) rule->gradient_ready(index);
  rule->after_backward({.step = 1}).wait();
  return fixture.flat;
}

TEST(AllReduce, GivesEveryPeerTheSummedGradient) {
  for (double bucket_mib : {1.0, 1e-6, 2e-5})  // one bucket, one for each gradient, in between
    harness::on_ranks(4, [=](comm::World& world) { EXPECT_TRUE(at::equal(one_step(world, bucket_mib), at::full({12}, 10.f))); });
}

TEST(AllReduce, MovesTheGradientTwiceLessOwnShare) {
  const harness::Run run = harness::on_ranks(4, [](comm::World& world) { one_step(world, 1); });
  EXPECT_EQ(run.ledger.bytes_sent(/*rank=*/0, comm::Purpose::gradient), 2 * 48 * 3 / 4);  // 2(n-1)/n of 12 floats, as booked
}

TEST(AllReduce, BucketsLeaveInOneOrderWhateverTheOrderOfCompletion) {
  harness::on_ranks(3, [](comm::World& world) {
    const std::vector<int64_t> order = world.rank() == 1 ? std::vector<int64_t>{0, 2, 1} : std::vector<int64_t>{2, 1, 0};
    EXPECT_TRUE(at::equal(one_step(world, 1e-6, order), at::full({12}, 6.f)));
  });
}

TEST(AllReduce, NeighboursTravelInOneMessage) {
  const auto messages = [](double bucket_mib) {
    return harness::on_ranks(2, [=](comm::World& world) { one_step(world, bucket_mib); }).ledger.messages_sent(0, comm::Purpose::gradient);
  };
  EXPECT_EQ(messages(1e-6), 3 * messages(1));
}

TEST(AllReduce, NamesTheLostPeerToEverySurvivor) {
  const auto faults = harness::Faults().lose({.rank = 2, .before_collective = 0});
  const harness::Run run = harness::on_ranks(4, faults, [](comm::World& world) { one_step(world, 1); });
  ASSERT_EQ(run.faults_fired, 1);  // or the test shows nothing
  for (int survivor : {0, 1, 3}) {
    EXPECT_EQ(run.error_on(survivor).kind(), Error::Kind::lost_peer);
    EXPECT_EQ(run.error_on(survivor).peer(), 2);
  }
}

TEST(AllReduce, NoticesAGradientThatWasNeverAnnounced) {
  const harness::Run run = harness::on_ranks(1, {.expect_errors = true}, [](comm::World& world) { one_step(world, 1, {2, 1}); });
  EXPECT_NE(std::string(run.error_on(0).what()).find("2 of 3 gradients announced"), std::string::npos) << run.error_on(0).what();
}

}  // namespace
}  // namespace cairn::sync
