#include "unlearn/tombstones.h"

#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/files/faulty_disk.h"
#include "base/files/recording_disk.h"
#include "small_store.h"

namespace cairn::unlearn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Tombstones, AreReadInTheirOrder) {
  const harness::ScratchFolder scratch;
  const auto log = scratch / "tombstones.log";
  EXPECT_THAT(read_tombstones(log), IsEmpty());
  append_tombstones(log, std::vector<int64_t>{5, 2});
  append_tombstones(log, std::vector<int64_t>{9});
  EXPECT_THAT(read_tombstones(log), ElementsAre(5, 2, 9));
}

TEST(Tombstones, ALineWithoutItsEndDoesNotCountAndIsCutOff) {
  const harness::ScratchFolder scratch;
  const auto log = scratch / "tombstones.log";
  append_tombstones(log, std::vector<int64_t>{5});
  std::ofstream(log, std::ios::app) << "7 1234567 00ab";
  EXPECT_THAT(read_tombstones(log), ElementsAre(5));
  append_tombstones(log, std::vector<int64_t>{8});
  EXPECT_THAT(read_tombstones(log), ElementsAre(5, 8));
}

TEST(Tombstones, ADamagedLineIsAnErrorBecauseDeletionsWouldBeForgotten) {
  const harness::ScratchFolder scratch;
  const auto log = scratch / "tombstones.log";
  append_tombstones(log, std::vector<int64_t>{5, 6});
  std::string text = scratch.text_of("tombstones.log");
  text[0] = '4';
  scratch.file("tombstones.log", text);
  EXPECT_THAT(refusal_by([&] { read_tombstones(log); }), HasSubstr("line 1 is no deletion"));
}

TEST(Tombstones, AFullDiskLeavesTheLogAsItWas) {
  const harness::ScratchFolder scratch;
  const auto log = scratch / "tombstones.log";
  append_tombstones(log, std::vector<int64_t>{5});
  const std::string before = scratch.text_of("tombstones.log");
  for (const base::DiskFaults& faults : {base::DiskFaults{.full_after_bytes = 10}, base::DiskFaults{.sync_fails = true}}) {
    const base::FaultyDisk disk(faults);
    EXPECT_THAT(refusal_by([&] { append_tombstones(log, std::vector<int64_t>{6, 7}, disk); }), HasSubstr("Nothing was deleted"));
    EXPECT_GT(disk.fired(), 0);
    EXPECT_EQ(scratch.text_of("tombstones.log"), before);
  }
}

// Whatever moment a process or a machine dies at: what was acknowledged before is there, and nothing is but what was asked for.
TEST(Tombstones, SurviveACrashAtAnyMoment) {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 20; ++trial) {
    const harness::ScratchFolder scratch;
    std::filesystem::create_directories(scratch / "store");
    const auto log = scratch / "store" / "tombstones.log";
    append_tombstones(log, std::vector<int64_t>{1, 2});
    const base::RecordingDisk disk(scratch / "store");
    append_tombstones(log, std::vector<int64_t>{3}, disk);
    const size_t acknowledged = disk.changes();
    append_tombstones(log, std::vector<int64_t>{4, 5}, disk);
    for (size_t done = 0; done <= disk.changes(); ++done)
      for (const auto dies : {base::RecordingDisk::Dies::process, base::RecordingDisk::Dies::machine}) {
        std::filesystem::remove_all(scratch / "left");
        disk.after_crash(
            done, dies, [&] { return random(); }, scratch / "left");
        std::vector<int64_t> found;
        ASSERT_NO_THROW(found = read_tombstones(scratch / "left" / "tombstones.log")) << done;
        const std::vector<int64_t> all{1, 2, 3, 4, 5};
        ASSERT_LE(found.size(), all.size());
        EXPECT_NE(found.size(), 4u);  // both of a request or none
        EXPECT_TRUE(std::equal(found.begin(), found.end(), all.begin())) << done;
        EXPECT_GE(found.size(), done == disk.changes() ? 5u : done >= acknowledged ? 3u : 2u) << done;
      }
  }
}

}  // namespace
}  // namespace cairn::unlearn
