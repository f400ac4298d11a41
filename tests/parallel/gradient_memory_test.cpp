// What a flow of gradients holds during a step and between steps, where ranks share gradients out.
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
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

GradientFlow::Parts of_one_rank(comm::World& world) {
  GradientFlow::Parts parts = three_units(world);
  parts.keepers = parts.memory = nullptr;
  parts.whole = parts.lent = true;
  return parts;
}

TEST(GradientMemory, IsLentFromTheFirstContributionUntilTheNextStep) {
  harness::on_ranks(1, [](comm::World& world) {
    GradientFlow flow(of_one_rank(world));
    const int64_t all = 4 * (kSmall + kMiddle + kLarge);
    EXPECT_EQ(flow.bytes(), all);
    EXPECT_EQ(flow.bytes_now(), 0);
    const at::Tensor view = flow.kept(1).narrow(0, 3, 4);  // made before there is memory, and as good as later ones
    for (int step = 1; step < 4; ++step) {
      std::vector<int64_t> announced;
      flow.begin(2, 2, [&](int64_t kept) { announced.push_back(kept); });
      EXPECT_EQ(flow.bytes_now(), 0);
      EXPECT_THROW(view.const_data_ptr<float>(), c10::Error) << "there is nothing to read";
      for (int pass = 0; pass < 2; ++pass) {
        flow.add({2}, at::full({kSmall}, step));
        EXPECT_EQ(flow.bytes_now(), pass == 0 ? 4 * kSmall : 4 * (kSmall + kMiddle));
        flow.add({1}, at::full({kMiddle}, 10 * step));
        flow.end_pass();
      }
      flow.finish();  // nothing came for the first
      EXPECT_EQ(flow.bytes_now(), all);
      EXPECT_EQ(announced, (std::vector<int64_t>{2, 1, 0}));
      EXPECT_TRUE(flow.kept(2).eq(2 * step).all().item<bool>());
      EXPECT_TRUE(view.eq(20 * step).all().item<bool>());
      EXPECT_TRUE(flow.kept(0).eq(0).all().item<bool>());
    }
    EXPECT_EQ(flow.bytes_most(), all);
  });
}

TEST(GradientMemory, IsNotLentWhereOthersHaveAPartInIt) {
  harness::on_ranks(2, [](comm::World& world) {
    GradientFlow::Parts parts = three_units(world);
    parts.lent = true;
    EXPECT_THROW(GradientFlow{std::move(parts)}, Error);
  });
}

}  // namespace
}  // namespace cairn::parallel
