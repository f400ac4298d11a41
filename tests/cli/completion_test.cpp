// Shell completion, asked as a shell asks it.
#include "cli/completion.h"

#include <algorithm>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/arguments.h"
#include "cli/program.h"
#include "train/settings.h"

namespace cairn::cli {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsSupersetOf;
using testing::Not;

class Completion : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch = std::make_unique<harness::ScratchFolder>();
    const Outcome outcome = cairn(*scratch, {"completion", "bash"});
    ASSERT_EQ(outcome.code, 0);
    scratch->file("cairn.bash", outcome.output);
    scratch->file("mine.toml", "");
    scratch->file("other.txt", "");
    std::filesystem::create_directory(*scratch / "run");
  }
  static void TearDownTestSuite() { scratch.reset(); }

  // What bash offers where the cursor stands behind the last of these words; they are split as bash splits them.
  static std::vector<std::string> offered(const std::vector<std::string>& words) {
    std::string script = "cd \"$1\"; . ./cairn.bash; COMP_WORDS=(";
    for (const std::string& word : words) script += " '" + word + "'";
    script += "); COMP_CWORD=" + std::to_string(words.size() - 1) + "; _cairn 2>&1; printf '%s\\n' \"${COMPREPLY[@]}\"";
    const study::ProcessResult ended =
        study::run_program({"bash", "--norc", "-c", script, "bash", scratch->path().string()}, (*scratch / "said.txt").string());
    EXPECT_EQ(ended.exit_code, 0) << ended.output;
    std::vector<std::string> lines;
    std::istringstream in(scratch->text_of("said.txt"));
    for (std::string line; std::getline(in, line);)
      if (!line.empty()) lines.push_back(line);
    return lines;
  }

  static std::unique_ptr<harness::ScratchFolder> scratch;
};
std::unique_ptr<harness::ScratchFolder> Completion::scratch;

bool has_bash() {
  const harness::ScratchFolder scratch;
  return study::run_program({"sh", "-c", "command -v bash"}, (scratch / "said.txt").string()).exit_code == 0;
}

TEST_F(Completion, OffersCommandsAndTheirOptionsInBash) {
  if (!has_bash()) GTEST_SKIP() << "no bash here";
  EXPECT_THAT(offered({"cairn", "tr"}), ElementsAre("train"));
  EXPECT_THAT(offered({"cairn", "snapshot", ""}), IsSupersetOf({"inspect", "verify", "export", "merge", "convert"}));
  EXPECT_THAT(offered({"cairn", "train", "--no"}), ElementsAre("--node-rank"));
  EXPECT_THAT(offered({"cairn", "snapshot", "export", "--d"}), ElementsAre("--dtype"));
}

TEST_F(Completion, OffersTheWordsThatAnOptionTakesInBash) {
  if (!has_bash()) GTEST_SKIP() << "no bash here";
  EXPECT_THAT(offered({"cairn", "train", "--transport", ""}), ElementsAre("local", "net", "nccl", "mpi"));
  EXPECT_THAT(offered({"cairn", "train", "--transport", "=", "n"}), ElementsAre("net", "nccl"));
  EXPECT_THAT(offered({"cairn", "completion", ""}), ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(offered({"cairn", "bench", "train-"}), ElementsAre("train-cpu"));
  EXPECT_THAT(offered({"cairn", "bench", "para"}), ElementsAre("parallel"));
}

TEST_F(Completion, OffersRecipeKeysAndTheirValuesInBash) {
  if (!has_bash()) GTEST_SKIP() << "no bash here";
  EXPECT_THAT(offered({"cairn", "train", "--set", "train.st"}), ElementsAre("train.steps="));
  EXPECT_THAT(offered({"cairn", "train", "x.toml", "--set", "data.packing", "=", "d"}), ElementsAre("documents"));
  EXPECT_THAT(offered({"cairn", "train", "--set", "log.trace", "="}), ElementsAre("true", "false"));
  EXPECT_THAT(offered({"cairn", "train", "--set", "data.path", "=", "oth"}), ElementsAre("other.txt"));
  EXPECT_THAT(offered({"cairn", "data", "inspect", "--set", ""}), testing::Each(testing::StartsWith("data.")));
}

TEST_F(Completion, OffersRecipesToTrainAndFilesToOthersInBash) {
  if (!has_bash()) GTEST_SKIP() << "no bash here";
  EXPECT_THAT(offered({"cairn", "train", ""}), testing::AllOf(IsSupersetOf({"mine.toml", "run"}), Not(Contains("other.txt"))));
  EXPECT_THAT(offered({"cairn", "eval", "r"}), ElementsAre("run"));
}

// Nothing that --help shows is missing, in any of the scripts: all are made from one table.
TEST(CompletionScript, HoldsEveryCommandOptionAndKey) {
  const std::vector<CommandSpec> commands = command_specs();
  const std::vector<KeySpec> keys = key_specs(train::recipe_sections());
  ASSERT_GT(commands.size(), 15u);
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = completion_script(shell, commands, keys);
    for (const CommandSpec& command : commands)
      for (const OptionSpec& option : command.options)
        for (const std::string& name : option.names)
          EXPECT_NE(script.find(std::string(shell) == "fish" ? name.substr(name.find_first_not_of('-')) : name), std::string::npos) << name;
    for (const KeySpec& key : keys) EXPECT_NE(script.find(key.key), std::string::npos) << key.key;
  }
  const auto train = std::find_if(commands.begin(), commands.end(), [](const CommandSpec& one) { return one.path == "train"; });
  ASSERT_NE(train, commands.end());
  EXPECT_EQ(train->arguments.front().names.front(), "recipe");
}

TEST(CompletionScript, RefusesShellsItDoesNotKnow) {
  const harness::ScratchFolder scratch;
  const Outcome outcome = cairn(scratch, {"completion", "tcsh"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.output.find("tcsh not in {bash,zsh,fish}"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace cairn::cli
