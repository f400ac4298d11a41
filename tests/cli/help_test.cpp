// Ways to ask for help and for versions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;

TEST(Help, HasTheFormsThatPeopleTry) {
  const harness::ScratchFolder scratch;
  const auto said = [&](const std::vector<std::string>& arguments) {
    const Outcome outcome = cairn(scratch, arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome.output;
  };
  EXPECT_EQ(said({"help"}), said({"--help"}));
  EXPECT_EQ(said({"help", "train"}), said({"train", "--help"}));
  EXPECT_EQ(said({"help", "snapshot", "export"}), said({"snapshot", "export", "--help"}));
  EXPECT_EQ(said({"--version"}), said({"version"}));
}

TEST(Help, ListsEveryCommandAndExitCode) {
  const harness::ScratchFolder scratch;
  const std::string help = cairn(scratch, {"--help"}).output;
  for (const char* word :
       {"\n  logits ", "\n  help ", "--version", "Exit codes: 0 done, 1 ", "2 wrong recipe", "3 failed run", "4 lost peer"})
    EXPECT_THAT(help, HasSubstr(word));
}

TEST(Doctor, NamesTheVectorInstructions) {
  const harness::ScratchFolder scratch;
  const std::string facts = cairn(scratch, {"doctor"}).output;
  EXPECT_THAT(facts, HasSubstr("vector instructions"));
  EXPECT_EQ(facts.find("DEFAULT"), std::string::npos) << facts;
}

}  // namespace
}  // namespace cairn::cli
