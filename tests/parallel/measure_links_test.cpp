#include "parallel/layout/measure_links.h"

#include <mutex>

#include <gtest/gtest.h>

#include "comm/group.h"
#include "comm/world.h"
#include "harness/ranks.h"

namespace cairn::parallel {
namespace {

using namespace std::chrono_literals;

model::ContextLinks measured(const comm::LinkModel& link, int ranks, const std::vector<std::vector<int>>& groups = {}) {
  model::ContextLinks found;
  std::mutex lock;
  harness::on_ranks(ranks, {.link = link}, [&](comm::World& world) {
    std::vector<int> own = world.everyone().ranks();
    for (const std::vector<int>& one : groups)
      if (std::find(one.begin(), one.end(), world.rank()) != one.end()) own = one;
    const model::ContextLinks links = measure_context_links(world.group(own, "links"), world.everyone(), c10::Device(c10::kCPU));
    const std::lock_guard guard(lock);
    if (!found.origin.empty()) {
      EXPECT_EQ(links.bytes_per_s_matrix, found.bytes_per_s_matrix) << "two ranks would choose differently";
      EXPECT_EQ(links.shared_card, found.shared_card);
    }
    found = links;
  });
  return found;
}

TEST(MeasureLinks, FindsTheLatencyAndBandwidthOfEachPair) {
  comm::LinkModel link{.latency = 20us, .jitter = 0};
  link.bytes_per_s_matrix = {{1, 1e6, 2e6}, {5e6, 1, 1e6}, {1e6, 1e7, 1}};
  const model::ContextLinks links = measured(link, 3);
  for (size_t from = 0; from < 3; ++from)
    for (size_t to = 0; to < 3; ++to) {
      if (from == to) continue;
      EXPECT_NEAR(links.bytes_per_s_matrix[from][to] / link.bytes_per_s_matrix[from][to], 1, 0.05) << from << " to " << to;
      EXPECT_NEAR(links.latency_s_matrix[from][to], 20e-6, 10e-6);
    }
  EXPECT_FALSE(links.shared_card);
  EXPECT_EQ(links.flops_per_s, 0);  // on a virtual clock computation is free
}

TEST(MeasureLinks, TellsACardThatLinksShare) {
  comm::LinkModel link{.latency = 100us, .bytes_per_s = 1e8, .jitter = 0};
  for (const int ranks : {3, 4, 8}) {
    link.contention = comm::LinkModel::Contention::per_pair;
    EXPECT_FALSE(measured(link, ranks).shared_card) << ranks;
    link.contention = comm::LinkModel::Contention::per_nic;
    const model::ContextLinks card = measured(link, ranks);
    EXPECT_TRUE(card.shared_card) << ranks;
    EXPECT_NEAR(card.bytes_per_s / 1e8, 1, 0.05);
  }
}

TEST(MeasureLinks, IsNotMisledByLatency) {
  const comm::LinkModel link{.latency = 5ms, .bytes_per_s = 125e6, .jitter = 0, .contention = comm::LinkModel::Contention::per_nic};
  const model::ContextLinks card = measured(link, 4);
  EXPECT_TRUE(card.shared_card);
  EXPECT_NEAR(card.bytes_per_s / 125e6, 1, 0.05);
}

TEST(MeasureLinks, GivesAllGroupsTheSlowest) {
  comm::LinkModel link{.latency = 100us, .jitter = 0};
  link.bytes_per_s_matrix = std::vector(4, std::vector<double>(4, 1e8));
  link.bytes_per_s_matrix[2][3] = 1e7;
  const model::ContextLinks links = measured(link, 4, {{0, 1}, {2, 3}});
  EXPECT_NEAR(links.bytes_per_s_matrix[0][1] / 1e7, 1, 0.05);
  EXPECT_NEAR(links.bytes_per_s_matrix[1][0] / 1e8, 1, 0.05);
}

}  // namespace
}  // namespace cairn::parallel
