#include "proofs/c4_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/scratch_folder.h"

namespace cairn::study {
namespace {

using testing::HasSubstr;

// One rank's main thread is stopped, then goes on; later the whole process of another one is stopped.
TEST(C4Processes, TheAgentNamesAStuckAndAFrozenRank) {
  const harness::ScratchFolder folder;
  std::vector<std::string> arguments{"--mesh", "tp=2,dp=2"};
  for (const char* set : {"model.layers=1", "model.embed=16", "model.heads=2", "model.kv_heads=2", "model.mlp=16", "data.vocab=260",
                          "data.length=16", "data.stories_bytes=20000", "train.global_batch=4", "train.steps=1000000", "log.samples=0",
                          "log.tensorboard=false", "log.trace=false", "snapshot.every=0", "eval.every=0", "diagnosis.hang_s=3"})
    arguments.insert(arguments.end(), {"--set", set});
  const C4RunOutcome outcome =
      run_c4_processes(std::string(CAIRN_BINARY_DIR) + "/cairn", folder.path().string(), arguments, {2}, 1, /*clean_seconds=*/3);
  ASSERT_EQ(outcome.injections.size(), 2u) << outcome.output;
  const C4Injection &stuck = outcome.injections[0], &frozen = outcome.injections[1];
  if (!stuck.impossible) {
    EXPECT_TRUE(stuck.right()) << stuck.line << outcome.output;
    EXPECT_LT(stuck.seconds, 15) << stuck.line;
    EXPECT_THAT(outcome.output, HasSubstr("cairn: stuck: rank 2 on "));
    EXPECT_THAT(outcome.records, HasSubstr("reported  stuck: rank 2 on "));
  }
  EXPECT_TRUE(frozen.right()) << frozen.line << outcome.output;
  EXPECT_LT(frozen.seconds, 15) << frozen.line;
  EXPECT_THAT(outcome.output, HasSubstr("cairn: frozen: rank 1 on "));
  EXPECT_THAT(outcome.records, HasSubstr("reported  frozen: rank 1 on "));
  EXPECT_THAT(outcome.records, HasSubstr("\nrank 3 "));
}

}  // namespace
}  // namespace cairn::study
