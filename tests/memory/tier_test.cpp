#include "memory/tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "memory/disk_folder.h"

namespace cairn::memory {
namespace {

using base::MemoryUse;
using ::testing::HasSubstr;

TEST(Tier, ReportsBytesByTierAndPurpose) {
  const DiskFolder folder;
  const base::RealClock clock;
  base::Log log = base::Log::capture();
  Tier tier({.device_bytes = kMiB, .host_bytes = 2 * kMiB, .swap = {.folder = folder.path(), .run_id = "t", .bytes = 4 * kMiB}}, clock,
            log);
  const Buffer device = tier.device().take(1000, MemoryUse::parameters, "layers.0");
  const RecordId id = tier.disk().add("layers.0", 300'000, MemoryUse::optimizer);
  Buffer buffer = tier.host().take(300'000, MemoryUse::optimizer, "layers.0");
  fill(buffer.bytes(), 0, 1);
  tier.disk().write(id, std::move(buffer)).wait();
  EXPECT_TRUE(holds(tier.disk().read(id, {.io_class = IoClass::states}).wait()->bytes(), 0, 1));

  const TierReport report = tier.report();
  const int64_t whole = sealed_bytes(300'000);
  EXPECT_EQ(report.tiers[static_cast<size_t>(TierKind::device)].now, kPageBytes);
  EXPECT_EQ(report.tiers[static_cast<size_t>(TierKind::host)].now, 0);
  EXPECT_EQ(report.tiers[static_cast<size_t>(TierKind::host)].peak_by_use[static_cast<size_t>(MemoryUse::optimizer)], whole);
  EXPECT_EQ(report.tiers[static_cast<size_t>(TierKind::disk)].now_by_use[static_cast<size_t>(MemoryUse::optimizer)], whole);
  EXPECT_EQ(report.disk.written[static_cast<size_t>(IoClass::write_back)].bytes, whole);
  EXPECT_EQ(report.disk.read[static_cast<size_t>(IoClass::states)].bytes, whole);
  const std::string text = to_text(report);
  EXPECT_THAT(text, HasSubstr("device: 4.00 KiB of 1.00 MiB, at most 4.00 KiB; parameters 4.00 KiB\n"));
  EXPECT_THAT(text, HasSubstr("states: read 296 KiB, written 0 B\n"));
  ASSERT_EQ(log.lines().size(), 1U);
  EXPECT_THAT(log.lines()[0], HasSubstr("memory: 4.00 MiB of " + tier.disk().file().path().string() + " on disk, "));
}

TEST(Tier, SharesOneDiskBetweenRanks) {
  const DiskFolder folder;
  const base::RealClock clock;
  base::Log log = base::Log::quiet();
  const auto io = std::make_shared<DiskIo>(DiskIoOptions{}, clock);
  std::vector<std::unique_ptr<Tier>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::make_unique<Tier>(
        TierOptions{.host_bytes = kMiB, .swap = {.folder = folder.path(), .run_id = "t", .rank = rank, .bytes = kMiB}, .shared_disk = io},
        clock, log));
    Buffer buffer = ranks.back()->host().take(5000, MemoryUse::parameters, "w");
    fill(buffer.bytes(), rank, 1);
    ranks.back()->disk().write(ranks.back()->disk().add("w", 5000, MemoryUse::parameters), std::move(buffer));
  }
  for (int rank = 0; rank < 3; ++rank) {
    ranks[static_cast<size_t>(rank)]->disk().drain();
    EXPECT_TRUE(holds(ranks[static_cast<size_t>(rank)]->disk().read(RecordId{0}).wait()->bytes(), rank, 1));
  }
  EXPECT_EQ(io->counters().bytes_written(), 3 * sealed_bytes(5000));
}

TEST(Tier, HasNoDiskWithoutABudgetForIt) {
  const base::RealClock clock;
  base::Log log = base::Log::quiet();
  Tier tier({.host_bytes = kMiB}, clock, log);
  EXPECT_FALSE(tier.has_disk());
  EXPECT_THAT(message_of([&] { tier.disk(); }), HasSubstr("memory.disk_budget = 0: nothing can live on disk"));
}

TEST(Tier, RefusesBudgetsBelowTheLargestUnit) {
  const TierOptions options{.device_bytes = 10 * kMiB, .host_bytes = 4 * kMiB};
  const std::vector<TierNeed> fits{{TierKind::device, 10 * kMiB, "everything"}};
  EXPECT_EQ(message_of([&] { check_budgets(options, fits); }), "no error");
  const std::vector<TierNeed> needs{{TierKind::device, 10 * kMiB, "layers"}, {TierKind::host, 5 * kMiB, "two buffers of embed_tokens"}};
  EXPECT_EQ(
      message_of([&] { check_budgets(options, needs); }),
      "bad_input: memory.host_budget = 4.00 MiB: two buffers of embed_tokens needs 5.00 MiB at once. Raise it to that, or use smaller "
      "pieces.");
}

TEST(Tier, RefusesAHopelessRate) {
  EXPECT_EQ(message_of([] { check_rate(int64_t{40} << 30, 1, double{1 << 30}, 10); }),
            "bad_input: memory on disk: a step of 1 s moves 40.0 GiB: needs 40.0 GiB/s, has 1.00 GiB/s. Keep more in host memory, or take "
            "larger batches.");
  EXPECT_EQ(message_of([] { check_rate(int64_t{9} << 30, 1, double{1 << 30}, 10); }), "no error");
}

}  // namespace
}  // namespace cairn::memory
