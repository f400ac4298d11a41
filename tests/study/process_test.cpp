#include "study/process.h"

#include <csignal>

#include <gtest/gtest.h>

#include "harness/scratch_folder.h"

namespace cairn::study {
namespace {

TEST(Process, GivesWhatAProgramSaidAndHowItEnded) {
  const harness::ScratchFolder scratch;
  const ProcessResult ended = run_program({"sh", "-c", "echo said; echo too >&2; exit 3"}, (scratch / "said.txt").string());
  EXPECT_EQ(ended.exit_code, 3);
  EXPECT_EQ(ended.output, "said\ntoo\n");
}

TEST(Process, ALimitLeavesAProgramAloneThatEndsInTime) {
  const harness::ScratchFolder scratch;
  const ProcessResult ended = run_program_for(std::chrono::minutes(5), {"sh", "-c", "exit 3"}, (scratch / "said.txt").string());
  EXPECT_EQ(ended.exit_code, 3);
}

TEST(Process, ALimitEndsAProgramThatDoesNotAndKeepsWhatItSaid) {
  const harness::ScratchFolder scratch;
  const ProcessResult ended =
      run_program_for(std::chrono::milliseconds(300), {"sh", "-c", "echo said; exec tail -f /dev/null"}, (scratch / "said.txt").string());
  EXPECT_EQ(ended.exit_code, 128 + SIGTERM);
  EXPECT_GE(ended.seconds, 0.3);
  EXPECT_EQ(ended.output, "said\n");
}

}  // namespace
}  // namespace cairn::study
