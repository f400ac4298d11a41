// How much memory gradients take during a step and between steps, where they are sharded.
#include "parallel/state/gradient_reducer.h"

#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/group.h"
#include "harness/ranks.h"
#include "kernels/aten.h"

namespace cairn::parallel {
namespace {

constexpr int64_t kSmall = 9, kMiddle = 11, kLarge = 13;

// Three units of different sizes over two ranks; the first to leave, which is the last, is the smallest.
GradientReducer::Parts three_units(comm::World& world) {
  GradientReducer::Parts parts;
  for (const int64_t elements : {kLarge, kMiddle, kSmall}) {
    const auto i = static_cast<int64_t>(parts.layout.pieces.size());
    const int64_t offset = parts.layout.elements;
    parts.layout.append("p" + std::to_string(i), {elements});
    parts.units.push_back(
        {.first = i, .last = i + 1, .offset = offset, .elements = elements, .counts = comm::even_counts(elements, world.size())});
    parts.uses.push_back(1);
    parts.copies.push_back(nullptr);
  }
  parts.shard_group = &world.everyone();
  parts.memory = &world.everyone();
  parts.options = at::TensorOptions().dtype(at::kFloat);
  parts.unsharded = false;
  return parts;
}

void one_pass(GradientReducer& reducer) {
  int32_t i = 2;
  for (const int64_t elements : {kSmall, kMiddle, kLarge}) reducer.add({i--}, at::ones({elements}));
  reducer.end_pass();
}

void expect_each(const GradientReducer& reducer, float each) {
  for (int64_t unit = 0; unit < 3; ++unit) EXPECT_TRUE(reducer.shard(unit).eq(each).all().item<bool>());
}

TEST(GradientMemory, TwoBuffersWaitAtMostWhateverTheirSizes) {
  harness::on_ranks(2, [](comm::World& world) {
    GradientReducer reducer(three_units(world));
    for (int step = 0; step < 3; ++step) {
      reducer.begin(1, 1, nullptr);
      one_pass(reducer);
      reducer.finish();
      expect_each(reducer, 2);
    }
    EXPECT_LE(reducer.peak_bytes(), reducer.bytes() + 4 * 2 * kLarge);
  });
}

TEST(GradientMemory, WhatASumOfSeveralPassesTookIsGivenBackAfterTheStep) {
  harness::on_ranks(2, [](comm::World& world) {
    GradientReducer reducer(three_units(world));
    for (int step = 0; step < 2; ++step) {
      reducer.begin(3, 3, nullptr);
      EXPECT_EQ(reducer.current_bytes(), reducer.bytes() + 4 * (kSmall + kMiddle + kLarge));
      for (int pass = 0; pass < 3; ++pass) one_pass(reducer);
      reducer.finish();
      expect_each(reducer, 6);
      EXPECT_EQ(reducer.current_bytes(), reducer.bytes());
    }
  });
}

// A supernet's run, or a batch that grows: steps of one pass, which have a buffer a unit, then steps of several, which have one for all.
TEST(GradientMemory, AStepMayHaveMoreOrFewerPassesThanTheOneBefore) {
  harness::on_ranks(2, [](comm::World& world) {
    GradientReducer reducer(three_units(world));
    for (const int64_t passes : {1, 1, 3, 3, 1, 2, 1}) {
      reducer.begin(passes, passes, nullptr);
      for (int64_t pass = 0; pass < passes; ++pass) one_pass(reducer);
      reducer.finish();
      expect_each(reducer, static_cast<float>(2 * passes));
    }
  });
}

TEST(GradientMemory, PassesInAnyOrderAreSummedWholeEvenWhereThereIsOne) {
  harness::on_ranks(2, [](comm::World& world) {
    GradientReducer::Parts parts = three_units(world);
    parts.in_order = false;
    GradientReducer reducer(std::move(parts));
    reducer.begin(1, 1, nullptr);
    EXPECT_EQ(reducer.current_bytes(), reducer.bytes() + 4 * (kSmall + kMiddle + kLarge));
    reducer.add({0}, at::ones({kLarge}));  // the first before the last
    reducer.add({2}, at::ones({kSmall}));
    reducer.add({1}, at::ones({kMiddle}));
    reducer.finish();
    expect_each(reducer, 2);
    EXPECT_EQ(reducer.current_bytes(), reducer.bytes());
  });
}

GradientReducer::Parts of_one_rank(comm::World& world) {
  GradientReducer::Parts parts = three_units(world);
  parts.shard_group = parts.memory = nullptr;
  parts.unsharded = parts.reuse_memory = true;
  return parts;
}

TEST(GradientMemory, IsReusedOutsideOfTheTimeFromTheFirstContributionToTheNextStep) {
  harness::on_ranks(1, [](comm::World& world) {
    GradientReducer reducer(of_one_rank(world));
    const int64_t all = 4 * (kSmall + kMiddle + kLarge);
    EXPECT_EQ(reducer.bytes(), all);
    EXPECT_EQ(reducer.current_bytes(), 0);
    const at::Tensor view = reducer.shard(1).narrow(0, 3, 4);  // made before there is memory, and as good as later ones
    for (int step = 1; step < 4; ++step) {
      std::vector<int64_t> announced;
      reducer.begin(2, 2, [&](int64_t kept) { announced.push_back(kept); });
      EXPECT_EQ(reducer.current_bytes(), 0);
      EXPECT_THROW(view.const_data_ptr<float>(), c10::Error) << "there is nothing to read";
      for (int pass = 0; pass < 2; ++pass) {
        reducer.add({2}, at::full({kSmall}, step));
        EXPECT_EQ(reducer.current_bytes(), pass == 0 ? 4 * kSmall : 4 * (kSmall + kMiddle));
        reducer.add({1}, at::full({kMiddle}, 10 * step));
        reducer.end_pass();
      }
      reducer.finish();  // nothing came for the first
      EXPECT_EQ(reducer.current_bytes(), all);
      EXPECT_EQ(announced, (std::vector<int64_t>{2, 1, 0}));
      EXPECT_TRUE(reducer.shard(2).eq(2 * step).all().item<bool>());
      EXPECT_TRUE(view.eq(20 * step).all().item<bool>());
      EXPECT_TRUE(reducer.shard(0).eq(0).all().item<bool>());
    }
    EXPECT_EQ(reducer.peak_bytes(), all);
  });
}

TEST(GradientMemory, IsNotReusedWhereOtherRanksTakePart) {
  harness::on_ranks(2, [](comm::World& world) {
    GradientReducer::Parts parts = three_units(world);
    parts.reuse_memory = true;
    EXPECT_THROW(GradientReducer{std::move(parts)}, Error);
  });
}

TEST(GradientHold, KeepsCompleteGradientsUntilTheyAreReduced) {
  harness::on_ranks(2, [](comm::World& world) {
    GradientReducer::Parts parts = three_units(world);
    parts.in_order = false;
    GradientReducer reducer(std::move(parts));
    const auto sent = [&] { return world.ledger().bytes_sent(world.rank(), comm::Purpose::gradient); };
    for (int step = 0; step < 2; ++step) {
      std::vector<int64_t> announced;
      reducer.begin(1, 1, [&](int64_t slice) { announced.push_back(slice); });
      for (int32_t i = 0; i < 3; ++i) reducer.hold({i});
      world.everyone().barrier("begun").wait_host();
      const int64_t before = sent();
      one_pass(reducer);
      world.everyone().barrier("passed").wait_host();
      EXPECT_EQ(sent(), before);  // nothing has left
      reducer.reduce({2});
      world.everyone().barrier("reduced one").wait_host();
      EXPECT_GT(sent(), before);
      EXPECT_FALSE(reducer.is_complete());
      reducer.finish();  // reduces the rest
      expect_each(reducer, 2);
      EXPECT_EQ(announced.size(), 3U);
    }
  });
}

// Two pools of one size: ranks that complete them in other orders still call the same sums in the same order.
TEST(GradientSums, OfWhatManyLayersShareStartInOneOrder) {
  harness::on_ranks(2, [](comm::World& world) {
    GradientReducer::Parts parts;
    parts.layout.append("pool_a", {kSmall});
    parts.layout.append("pool_b", {kSmall});
    parts.units.push_back({.first = 0, .last = 2, .offset = 0, .elements = parts.layout.elements, .counts = {parts.layout.elements}});
    parts.units.back().of_many_layers = true;
    parts.uses = {1, 1};
    parts.copies = {&world.everyone(), &world.everyone()};
    parts.options = at::TensorOptions().dtype(at::kFloat);
    GradientReducer reducer(std::move(parts));
    for (int step = 0; step < 3; ++step) {
      reducer.begin(1, 1, nullptr);
      const int32_t first = world.rank() == 0 ? 0 : 1;
      for (const int32_t i : {first, 1 - first}) reducer.add({i}, at::full({kSmall}, 1 + i));
      reducer.end_pass();
      reducer.finish();
      EXPECT_TRUE(reducer.shard(0).narrow(0, 0, kSmall).eq(2).all().item<bool>());
      EXPECT_TRUE(reducer.shard(0).narrow(0, reducer.shard(0).numel() - kSmall, kSmall).eq(4).all().item<bool>());
    }
  });
}

}  // namespace
}  // namespace cairn::parallel
