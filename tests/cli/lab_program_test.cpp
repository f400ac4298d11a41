// The second program, as `cairn` starts it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;

TEST(LabProgram, RunsTheCommandsThatItHolds) {
  const harness::ScratchFolder scratch;
  const Outcome proofs = cairn(scratch, {"prove"});
  EXPECT_EQ(proofs.code, 0) << proofs.output;
  EXPECT_THAT(proofs.output, HasSubstr("same-answer"));
  const Outcome examples = cairn(scratch, {"example"});
  EXPECT_EQ(examples.code, 0) << examples.output;
  EXPECT_THAT(examples.output, HasSubstr("maml"));
  const Outcome unknown = cairn(scratch, {"bench", "train_cpu"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.output, HasSubstr("train-cpu"));
}

TEST(LabProgram, IsNamedWhereItIsNotBuilt) {
  const harness::ScratchFolder scratch;
  std::filesystem::copy_file(std::string(CAIRN_BINARY_DIR) + "/cairn", scratch / "cairn");
  const study::ProcessResult ended =
      study::run_program({(scratch / "cairn").string(), "prove", "same-answer"}, (scratch / "output.txt").string());
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.output, HasSubstr("./cairn build cairn-lab"));
}

TEST(LabProgram, LeavesTheOtherCommandsToCairn) {
  const harness::ScratchFolder scratch;
  const study::ProcessResult ended =
      study::run_program({std::string(CAIRN_BINARY_DIR) + "/cairn-lab", "version"}, (scratch / "output.txt").string());
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.output, HasSubstr("use cairn version"));
}

}  // namespace
}  // namespace cairn::cli
