// Processes that are killed while lazy snapshots are copied and written (snapshot.mode = "lazy").
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "running.h"
#include "snapshot/snapshot.h"
#include "snapshot/staging.h"

namespace cairn::cli {
namespace {

std::vector<std::string> saving_always(const std::string& out) {
  std::vector<std::string> arguments = tiny({"train", "--out", out, "--nproc", "2", "--resume", "auto"});
  for (const char* set : {"train.steps=40", "snapshot.every=1", "snapshot.mode=lazy", "snapshot.host_bytes=100KiB",
                          "snapshot.write_bytes_per_s=4000000", "eval.every=0", "log.samples=0"})
    arguments.insert(arguments.end(), {"--set", set});
  return arguments;
}

// The signal goes to the agent, and its ranks go with it. A kill after so many steps meets some save half way.
TEST(LazyKill, ARestartFindsAWholeSnapshotAndTheSameLosses) {
  const harness::ScratchFolder scratch;
  ASSERT_EQ(cairn(scratch, saving_always("straight")).code, 0);
  for (const size_t steps : {3, 11, 24}) {
    Running run(scratch, saving_always("killed"));
    ASSERT_TRUE(reaches(scratch / "killed", steps));
    run.end(SIGKILL);
    for (const auto& entry : std::filesystem::directory_iterator(scratch / "killed" / "snapshots"))
      if (entry.path().filename().string().starts_with("step-")) {
        EXPECT_TRUE(snapshot::looks_whole(entry.path())) << entry.path();
      }
    base::Log log = base::Log::capture();
    if (!snapshot::list((scratch / "killed").string()).empty()) {
      EXPECT_TRUE(snapshot::open_latest((scratch / "killed").string(), log)) << steps;
    }
  }
  const Outcome last = cairn(scratch, saving_always("killed"));
  ASSERT_EQ(last.code, 0) << last.output;
  EXPECT_EQ(losses_in(scratch / "killed"), losses_in(scratch / "straight"));
}

}  // namespace
}  // namespace cairn::cli
