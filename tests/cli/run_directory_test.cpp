// Which directory a run gets, and that no two runs ever have the same one.
#include "cli/launch/run_directory.h"

#include <set>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "program.h"
#include "running.h"

namespace cairn::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string name_for_data(const std::string& data) { return run_name({.out = {}, .resume = {}, .recipe = {}, .data = data}); }

TEST(RunName, ComesFromTheRecipeOrTheData) {
  EXPECT_EQ(run_name({}), "stories");
  EXPECT_EQ(run_name({.out = {}, .resume = {}, .recipe = "recipes/book.toml", .data = "x.txt"}), "book");
  EXPECT_EQ(name_for_data("texts/book.v2.txt"), "book.v2");
  EXPECT_EQ(name_for_data("texts/my book.txt"), "my-book");
}

TEST(RunName, OfAPatternOrAFolderIsAWordThatAShellTakes) {
  EXPECT_EQ(name_for_data("novels/*.txt"), "novels");
  EXPECT_EQ(name_for_data("/data/novels/**/*.txt"), "novels");
  EXPECT_EQ(name_for_data("novels/part-?.txt"), "part");
  EXPECT_EQ(name_for_data("novels/"), "novels");
  EXPECT_EQ(name_for_data("novels/."), "novels");
  EXPECT_EQ(name_for_data("/*"), "data");
  const std::string here = name_for_data(".");
  EXPECT_EQ(here, std::filesystem::current_path().stem().string());
}

// Each of ten processes claims a directory and holds it until all have one.
TEST(RunDirectory, TenStartsAtOnceGetTenDirectories) {
  const harness::ScratchFolder scratch;
  int named[2], go_on[2];
  ASSERT_EQ(::pipe(named), 0);
  ASSERT_EQ(::pipe(go_on), 0);
  std::vector<pid_t> runs;
  for (int i = 0; i < 10; ++i) {
    runs.push_back(::fork());
    if (runs.back() != 0) continue;
    ::close(go_on[1]);
    if (::chdir(scratch.path().c_str()) != 0) ::_exit(1);
    const ClaimedRun claimed = claim_run_directory({});
    const std::string line = claimed.run.path.string() + "\n";
    char byte = 0;
    if (::write(named[1], line.data(), line.size()) < 0 || ::read(go_on[0], &byte, 1) < 0) ::_exit(1);
    ::_exit(0);
  }
  std::set<std::string> paths;
  std::string text;
  while (std::count(text.begin(), text.end(), '\n') < 10) {
    char more[256];
    const ssize_t bytes = ::read(named[0], more, sizeof more);
    ASSERT_GT(bytes, 0);
    text.append(more, static_cast<size_t>(bytes));
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) paths.insert(line);
  for (const int end : {named[0], named[1], go_on[0], go_on[1]}) ::close(end);
  for (const pid_t run : runs) ::waitpid(run, nullptr, 0);
  EXPECT_EQ(paths.size(), 10u) << text;
  EXPECT_TRUE(paths.contains("runs/stories")) << text;
  EXPECT_TRUE(paths.contains("runs/stories-10")) << text;
}

TEST(RunDirectory, InUseIsRefusedByOutAndByResume) {
  const harness::ScratchFolder scratch;
  Running running(scratch, tiny({"train", "--out", "runs/a", "--nproc", "2", "--set", "train.steps=100000", "--set", "snapshot.every=1"}));
  ASSERT_TRUE(reaches(scratch / "runs/a", 2)) << scratch.text_of("background.txt");
  const std::string recipe = scratch.text_of("runs/a/recipe.toml");
  const std::string said = "runs/a is in use by process " + std::to_string(running.process()) + " on ";
  for (const std::vector<std::string>& options : {std::vector<std::string>{"--out", "runs/a"},
                                                  {"--out", "runs/a", "--resume", "auto"},
                                                  {"--resume", "runs/a"},
                                                  {"--resume", "auto"}}) {
    std::vector<std::string> arguments{"train"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome second = cairn(scratch, arguments);
    EXPECT_EQ(second.code, 2) << second.output;
    EXPECT_THAT(second.output, HasSubstr(said));
  }
  EXPECT_EQ(scratch.text_of("runs/a/recipe.toml"), recipe);
  const Outcome dry = cairn(scratch, tiny({"train", "--resume", "runs/a", "--dry-run"}));
  EXPECT_EQ(dry.code, 0) << dry.output;
  running.end(SIGKILL);
  // Killed: the lock is free, and its ranks have ended or are about to.
  const Outcome next = cairn(scratch, {"train", "--resume", "auto", "--set", "train.steps=1"});
  EXPECT_THAT(next.output, HasSubstr("runs/a is already at step"));
}

TEST(RunDirectory, ThatCannotBeWrittenIsWrongInputInEveryForm) {
  const harness::ScratchFolder scratch;
  scratch.file("file", "");
  for (const char* out : {"file", "file/run", "/proc/run", "/proc/a/b/run", "/dev/null/run"}) {
    const Outcome outcome = cairn(scratch, tiny({"train", "--out", out, "--set", "train.steps=1"}));
    EXPECT_EQ(outcome.code, 2) << out << ": " << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(out));
  }
}

TEST(RunDirectory, OfAKilledStartCanBeUsedAgain) {
  const harness::ScratchFolder scratch;
  std::filesystem::create_directory(scratch / "a");
  scratch.file("a/.lock", R"({"process":1,"host":"elsewhere","process_start":"1","since":"then"})");
  const Outcome outcome = cairn(scratch, tiny({"train", "--out", "a", "--resume", "auto", "--set", "train.steps=1"}));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("--resume auto: there is no run in a yet: a new one starts"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "a/.lock"));
}

// Directories with recipes, oldest first.
void make_runs(const harness::ScratchFolder& scratch, const std::vector<std::string>& names) {
  auto time = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  for (const std::string& name : names) {
    std::filesystem::create_directories(scratch / "runs" / name);
    scratch.file("runs/" + name + "/recipe.toml", "");
    std::filesystem::last_write_time(scratch / "runs" / name / "recipe.toml", time += std::chrono::minutes(1));
  }
}

TEST(ResumeAuto, TakesTheNewestRunOfAnyNameOrOfThatOfTheRecipe) {
  const harness::ScratchFolder scratch;
  make_runs(scratch, {"book-2", "book", "stories", "tale", "stories-3"});
  std::filesystem::create_directories(scratch / "runs" / "newer-but-no-run");
  scratch.file("book.toml", "");
  const auto chosen = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> all = tiny({"train", "--dry-run", "--resume", "auto"});
    all.insert(all.begin() + 1, arguments.begin(), arguments.end());
    const Outcome outcome = cairn(scratch, all);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    const size_t at = outcome.output.find("run directory");
    return outcome.output.substr(at, outcome.output.find('\n', at) - at);
  };
  EXPECT_THAT(chosen({}), testing::EndsWith(" runs/stories-3"));
  EXPECT_THAT(chosen({"book.toml"}), testing::EndsWith(" runs/book"));
}

TEST(ResumeAuto, SaysThatThereIsNothingToContinue) {
  const harness::ScratchFolder scratch;
  const Outcome outcome = cairn(scratch, tiny({"train", "--resume", "auto", "--set", "train.steps=1"}));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("--resume auto: there is no run in runs/ to continue: a new one starts\n"));
  EXPECT_TRUE(std::filesystem::exists(scratch / "runs/stories/recipe.toml"));
}

}  // namespace
}  // namespace cairn::cli
