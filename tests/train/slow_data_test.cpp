#include <chrono>

#include <gtest/gtest.h>

#include "base/recipe.h"
#include "base/stop.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "train/train.h"

namespace cairn::train {
namespace {

using namespace std::chrono_literals;

// Rank 1 reaches the first collective ten minutes of virtual time after the others, as if it had tokenised alone. Its heartbeat goes on, so
// that it is not lost; the deadline of a collective is five minutes.
TEST(SlowData, ARankThatTokenisesLongerThanTheDeadlineIsWaitedFor) {
  const base::Recipe recipe = base::Recipe::parse(R"(
    model = {layers = 1, embed = 8, heads = 1, kv_heads = 1, mlp = 8}
    data = {vocab = 260, length = 8, stories_bytes = 5000}
    train = {steps = 1, global_batch = 3}
    log = {tensorboard = false, trace = false, samples = 0}
    eval = {every = 0}
  )",
                                                  "tiny.toml");
  const auto faults = harness::Faults().freeze({.rank = 1, .before_collective = 0, .thaw_after = 600s});
  const harness::Run ended = harness::on_ranks(3, {.deadline = 300s, .lost_after = 0s}, faults, [&](comm::World& world) {
    EXPECT_EQ(run(world, recipe, {}, {}, base::Stop()).step, 1);
    EXPECT_GE(world.clock().now(), 600s);
  });
  EXPECT_EQ(ended.faults_fired, 1);
  for (const auto& [rank, error] : ended.errors) ADD_FAILURE() << rank << ": " << error.what();
}

}  // namespace
}  // namespace cairn::train
