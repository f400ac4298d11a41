// The writer of snapshots under crashes: cairn prove universal-checkpointing --full tries 20,000 of them.
#include "proofs/crash_trials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/scratch_folder.h"

namespace cairn::study {
namespace {

TEST(CrashTrials, LeaveTheOldSnapshotOrTheNewOne) {
  const harness::ScratchFolder scratch;
  const CrashOutcome found = try_crashes({.scratch = scratch.path(), .seed = 3, .states = 300});
  EXPECT_THAT(found.wrong, testing::IsEmpty());
  EXPECT_EQ(found.states, 300);
  EXPECT_GT(found.old_found, 50);
  EXPECT_GT(found.new_found, 5);
}

TEST(CrashTrials, FindOutThatADiskDoesNotSync) {
  const harness::ScratchFolder scratch;
  const CrashOutcome found = try_crashes({.scratch = scratch.path(), .seed = 4, .states = 300, .disk_lies = true});
  EXPECT_FALSE(found.wrong.empty());
}

}  // namespace
}  // namespace cairn::study
