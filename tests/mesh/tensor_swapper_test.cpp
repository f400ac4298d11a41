#include "mesh/swap/tensor_swapper.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"
#include "harness/disk_folder.h"
#include "kernels/aten.h"
#include "mesh/swap/access_order.h"

namespace cairn::mesh {
namespace {

using Access = TensorSwapper::Access;
using memory::TierKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct SwapperRig {
  explicit SwapperRig(int64_t host_bytes, const memory::DiskIoOptions& disk = {}, int64_t disk_bytes = 1 << 20)
      : swapper(std::make_unique<memory::Tier>(
                    memory::TierOptions{
                        .host_bytes = host_bytes, .swap = {.folder = folder.path(), .run_id = "t", .bytes = disk_bytes}, .disk = disk},
                    clock, log),
                clock) {}

  at::Tensor make(const std::string& name, int64_t elements, TierKind home = TierKind::disk) {
    return swapper.make({.name = name, .home = home}, elements, at::kFloat);
  }

  harness::DiskFolder folder;
  base::RealClock clock;
  base::Log log = base::Log::quiet();
  TensorSwapper swapper;
};

// What element i of tensor t is after so many additions.
double expected(size_t t, int64_t rounds) { return static_cast<double>(t + 1) * static_cast<double>(rounds); }

TEST(TensorSwapper, KeepsMoreThanItsMemoryHolds) {
  for (const int64_t buffers : {1, 2, 3, 7}) {
    SwapperRig rig(buffers * 3 * memory::kPageBytes);
    std::vector<at::Tensor> tensors;
    const std::vector<int64_t> sizes{1, 1031, 2048, 2999, 17, 3000, 1500};
    for (size_t t = 0; t < sizes.size(); ++t) tensors.push_back(rig.make("t" + std::to_string(t), sizes[t]));
    for (int64_t round = 1; round <= 5; ++round)
      for (size_t t = 0; t < tensors.size(); ++t) {
        rig.swapper.prefetch(tensors[(t + 1) % tensors.size()]);
        {
          const auto hold = rig.swapper.hold(tensors[t].narrow(0, 0, 1), Access::update);  // by a view
          tensors[t].add_(static_cast<double>(t + 1));
        }
        if ((round + static_cast<int64_t>(t)) % 2 == 0) rig.swapper.write_back(tensors[t]);
      }
    for (size_t t = 0; t < tensors.size(); ++t) {
      const auto hold = rig.swapper.hold(tensors[t], Access::read);
      EXPECT_TRUE(at::equal(tensors[t], at::full({sizes[t]}, expected(t, 5)))) << buffers << " buffers, tensor " << t;
    }
    EXPECT_LE(rig.swapper.report().tiers[static_cast<size_t>(TierKind::host)].peak, buffers * 3 * memory::kPageBytes);
  }
}

TEST(TensorSwapper, HoldsNestAndMemoryGoesAfterwards) {
  SwapperRig rig(2 * 2 * memory::kPageBytes);
  const at::Tensor a = rig.make("a", 1000), b = rig.make("b", 1000), c = rig.make("c", 1000);
  {
    const auto outer = rig.swapper.hold(a, Access::overwrite);
    a.fill_(1);
    {
      const auto inner = rig.swapper.hold(std::vector<at::Tensor>{a, b, a.view({10, 100})}, Access::update);
      b.fill_(2);
    }
    const auto other = rig.swapper.hold(c, Access::update);  // b goes, a does not
    c.fill_(3);
    EXPECT_EQ(a.data_ptr<float>()[999], 1);
  }
  for (const auto& [tensor, value] : {std::pair(b, 2), std::pair(a, 1), std::pair(c, 3)}) {
    const auto hold = rig.swapper.hold(tensor, Access::read);
    EXPECT_TRUE(tensor.eq(value).all().item<bool>()) << value;
  }
}

TEST(TensorSwapper, SaysWhoHasTheMemory) {
  SwapperRig rig(memory::kPageBytes);
  const at::Tensor a = rig.make("a", 1000), b = rig.make("layers.7", 1000);
  const auto hold = rig.swapper.hold(a, Access::update);
  try {
    (void)rig.swapper.hold(b, Access::read);
    FAIL() << "there is no room";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::out_of_memory);
    EXPECT_THAT(error.what(), HasSubstr("memory.host_budget = 4.00 KiB: layers.7 needs 4.00 KiB"));
  }
}

TEST(TensorSwapper, PrefetchTakesNoRoomOfWhatWasReadAhead) {
  SwapperRig rig(2 * 2 * memory::kPageBytes);
  std::vector<at::Tensor> tensors;
  for (int t = 0; t < 4; ++t) {
    tensors.push_back(rig.make("t" + std::to_string(t), 1500));
    const auto hold = rig.swapper.hold(tensors.back(), Access::overwrite);
    tensors.back().fill_(t);
  }
  rig.swapper.flush();
  EXPECT_TRUE(rig.swapper.prefetch(tensors[0]));
  EXPECT_TRUE(rig.swapper.prefetch(tensors[1]));
  EXPECT_FALSE(rig.swapper.prefetch(tensors[2]));
  EXPECT_EQ(rig.swapper.counters().skipped, 1);
  for (int t : {2, 0, 1, 3}) {  // a hold takes what it needs all the same
    const auto hold = rig.swapper.hold(tensors[static_cast<size_t>(t)], Access::read);
    EXPECT_TRUE(tensors[static_cast<size_t>(t)].eq(t).all().item<bool>()) << t;
  }
}

TEST(TensorSwapper, BooksWhatTheDiskDid) {
  SwapperRig rig(memory::kPageBytes);
  const at::Tensor a = rig.make("a", 1000), b = rig.make("b", 1000);
  for (const at::Tensor& one : {a, b, a}) {
    const auto hold = rig.swapper.hold(one, Access::update);
    one.add_(1);
  }
  const TensorSwapper::Since since = rig.swapper.take_since();
  EXPECT_EQ(since.written_bytes, 2 * memory::sealed_bytes(4000));
  EXPECT_EQ(since.read_bytes, memory::sealed_bytes(4000));
  EXPECT_EQ(since.counts.waits, 1);
  EXPECT_EQ(rig.swapper.take_since().read_bytes, 0);
}

TEST(TensorSwapper, ReadErrorsNameFileAndOffsetAndHoldNothing) {
  for (const memory::IoFaults& faults : {memory::IoFaults{.read_error_after_bytes = 0}, memory::IoFaults{.ends_after_bytes = 4096},
                                         memory::IoFaults{.lost_write = 0}, memory::IoFaults{.torn_write = 0}}) {
    SwapperRig rig(3 * memory::kPageBytes, {.faults = faults});
    const at::Tensor a = rig.make("layers.0", 2500), b = rig.make("b", 2500);
    for (const at::Tensor& one : {a, b}) {
      const auto hold = rig.swapper.hold(one, Access::overwrite);
      one.fill_(1);
    }
    try {
      (void)rig.swapper.hold(a, Access::update);
      FAIL() << "a fault went unnoticed";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(rig.folder.path().string()));
      EXPECT_THAT(error.what(), HasSubstr("offset"));
      EXPECT_THAT(error.what(), HasSubstr("layers.0"));
    }
    EXPECT_EQ(a.data_ptr(), nullptr);
  }
}

TEST(TensorSwapper, HostTensorsOfACpuStay) {
  SwapperRig rig(4 * memory::kPageBytes);
  const at::Tensor a = rig.make("a", 700, TierKind::host);
  a.add_(3);
  const auto hold = rig.swapper.hold(a, Access::update);
  EXPECT_TRUE(a.eq(3).all().item<bool>());
  EXPECT_EQ(rig.swapper.take_since().written_bytes, 0);
}

TEST(AccessOrder, ForetellsTheNextUsesAndNoticesAnotherOrder) {
  AccessOrder order;
  const std::vector<int64_t> step{0, 1, 2, 1, 0};
  for (const int64_t one : step) EXPECT_TRUE(order.used(one));
  EXPECT_THAT(order.ahead(2), ElementsAre());
  order.end_step();
  EXPECT_THAT(order.ahead(2), ElementsAre(0, 1));
  order.used(0);
  EXPECT_THAT(order.ahead(3), ElementsAre(1, 2, 0));
  for (const int64_t one : {1, 2}) order.used(one);
  EXPECT_FALSE(order.used(2));
  EXPECT_EQ(order.surprises(), 1);
  EXPECT_THAT(order.ahead(2), ElementsAre());
  order.used(1);
  order.end_step();
  EXPECT_THAT(order.ahead(9), ElementsAre(0, 1, 2));
  for (const int64_t one : {0, 1, 2, 2, 1}) EXPECT_TRUE(order.used(one));
  EXPECT_EQ(order.surprises(), 1);
}

TEST(AccessOrder, AnEvaluationBetweenStepsIsNoSurprise) {
  AccessOrder order;
  for (const int64_t one : {0, 1, 2, 1, 0}) order.used(one);
  order.end_step();
  for (const int64_t one : {0, 1, 2, 0, 1, 2, 1, 0}) EXPECT_TRUE(order.used(one));
  EXPECT_EQ(order.surprises(), 0);
}

}  // namespace
}  // namespace cairn::mesh
