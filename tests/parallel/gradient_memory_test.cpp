// What a flow of gradients holds during a step and between steps, where ranks share gradients out.
#include <gtest/gtest.h>

#include "comm/group.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "parallel/gradient_flow.h"

namespace cairn::parallel {
namespace {

constexpr int64_t kSmall = 9, kMiddle = 11, kLarge = 13;

// Three units of different sizes over two ranks; the first to leave, which is the last, is the smallest.
GradientFlow::Parts three_units(comm::World& world) {
  GradientFlow::Parts parts;
  for (const int64_t elements : {kLarge, kMiddle, kSmall}) {
    const auto i = static_cast<int64_t>(parts.layout.pieces.size());
    const int64_t offset = parts.layout.elements;
    parts.layout.append("p" + std::to_string(i), {elements});
    parts.units.push_back(
        {.first = i, .last = i + 1, .offset = offset, .elements = elements, .counts = comm::even_counts(elements, world.size())});
    parts.uses.push_back(1);
    parts.copies.push_back(nullptr);
  }
  parts.keepers = &world.everyone();
  parts.memory = &world.everyone();
  parts.options = at::TensorOptions().dtype(at::kFloat);
  parts.whole = false;
  return parts;
}

void one_pass(GradientFlow& flow) {
  int32_t i = 2;
  for (const int64_t elements : {kSmall, kMiddle, kLarge}) flow.add({i--}, at::ones({elements}));
  flow.end_pass();
}

void expect_each(const GradientFlow& flow, float each) {
  for (int64_t unit = 0; unit < 3; ++unit) EXPECT_TRUE(flow.kept(unit).eq(each).all().item<bool>());
}

TEST(GradientMemory, TwoBuffersWaitAtMostWhateverTheirSizes) {
  harness::on_ranks(2, [](comm::World& world) {
    GradientFlow flow(three_units(world));
    for (int step = 0; step < 3; ++step) {
      flow.begin(1, 1, nullptr);
      one_pass(flow);
      flow.finish();
      expect_each(flow, 2);
    }
    EXPECT_LE(flow.bytes_most(), flow.bytes() + 4 * 2 * kLarge);
  });
}

TEST(GradientMemory, WhatASumOfSeveralPassesTookIsGivenBackAfterTheStep) {
  harness::on_ranks(2, [](comm::World& world) {
    GradientFlow flow(three_units(world));
    for (int step = 0; step < 2; ++step) {
      flow.begin(3, 3, nullptr);
      EXPECT_EQ(flow.bytes_now(), flow.bytes() + 4 * (kSmall + kMiddle + kLarge));
      for (int pass = 0; pass < 3; ++pass) one_pass(flow);
      flow.finish();
      expect_each(flow, 6);
      EXPECT_EQ(flow.bytes_now(), flow.bytes());
    }
  });
}

TEST(GradientMemory, PassesInAnyOrderAreSummedWholeEvenWhereThereIsOne) {
  harness::on_ranks(2, [](comm::World& world) {
    GradientFlow::Parts parts = three_units(world);
    parts.in_order = false;
    GradientFlow flow(std::move(parts));
    flow.begin(1, 1, nullptr);
    EXPECT_EQ(flow.bytes_now(), flow.bytes() + 4 * (kSmall + kMiddle + kLarge));
    flow.add({0}, at::ones({kLarge}));  // the first before the last
    flow.add({2}, at::ones({kSmall}));
    flow.add({1}, at::ones({kMiddle}));
    flow.finish();
    expect_each(flow, 2);
    EXPECT_EQ(flow.bytes_now(), flow.bytes());
  });
}

}  // namespace
}  // namespace cairn::parallel
