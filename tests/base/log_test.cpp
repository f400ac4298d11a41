#include "base/log.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/terminal.h"
#include "error_of.h"
#include "harness/scratch_folder.h"

namespace cairn::base {
namespace {

using testing::ElementsAre;
using testing::MatchesRegex;

struct Screen {
  std::string out;
  std::shared_ptr<Terminal> terminal = std::make_shared<Terminal>([this](std::string_view text) { out += text; }, false);
};

TEST(Log, CapturesLinesWithRankAndLevel) {
  Log log = Log::capture(/*rank=*/3);
  log.info("step={} loss={:.2f}", 7, 1.234);
  log.warn("late");
  log.error("lost");
  log.debug("detail");
  EXPECT_THAT(log.lines(), ElementsAre("[3] step=7 loss=1.23", "[3] warn: late", "[3] error: lost", "[3] debug: detail"));
}

TEST(Log, AddsTimeOnTheTerminal) {
  Screen screen;
  Log log({.rank = 0, .terminal = screen.terminal});
  log.info("hello");
  EXPECT_THAT(screen.out, MatchesRegex("[0-9][0-9]:[0-9][0-9]:[0-9][0-9] \\[0\\] hello\n"));
}

TEST(Log, LetsOtherRanksBeHeardOnlyFromWarningsUp) {
  Screen screen;
  Log log({.rank = 2, .terminal = screen.terminal});
  EXPECT_FALSE(log.is_enabled(Level::info));
  log.info("not heard");
  EXPECT_EQ(screen.out, "");
  log.warn("heard");
  EXPECT_NE(screen.out.find("[2] warn: heard"), std::string::npos);
  Log open({.rank = 2, .terminal = screen.terminal, .all_ranks_on_terminal = true});
  open.info("all");
  EXPECT_NE(screen.out.find("[2] all"), std::string::npos);
}

TEST(Log, WritesTheFileOfEveryRankAndAppends) {
  const harness::ScratchFolder folder;
  for (const char* text : {"first", "second"}) {
    Log log({.rank = 5, .file = folder / "log.txt"});
    log.info("{}", text);
    log.debug("below the level");
  }
  EXPECT_THAT(folder.text_of("log.txt"),
              MatchesRegex("....-..-.. ..:..:..\\.... \\[5\\] first\n....-..-.. ..:..:..\\.... \\[5\\] second\n"));
}

TEST(Log, KeepsBelowItsLevelSilent) {
  Log log = Log::capture(0, Level::warn);
  log.info("no");
  log.error("yes");
  EXPECT_THAT(log.lines(), ElementsAre("[0] error: yes"));
}

TEST(Log, FormatsNothingBelowTheLevel) {
  Log log = Log::quiet();
  EXPECT_FALSE(log.is_enabled(Level::error));
  log.error("{}", "nothing comes of it");
  EXPECT_TRUE(log.lines().empty());
}

TEST(Log, TakesTextWithBracesAndControlCharactersAsText) {
  Log log = Log::capture();
  log.info("{}", "{} %v \x1b[2J");
  EXPECT_THAT(log.lines(), ElementsAre("[0] {} %v ?[2J"));
}

TEST(Log, NamesAFileThatCannotBeOpened) {
  const harness::ScratchFolder folder;
  const std::string path = folder.file("file", "").string() + "/log.txt";
  const Error error = error_of([&] { Log({.file = path}); });
  EXPECT_EQ(error.kind(), Error::Kind::disk);
  EXPECT_TRUE(std::string(error.what()).starts_with("cannot open log file " + path + ": ")) << error.what();
}

TEST(Log, KeepsLinesWholeFromManyThreads) {
  Screen screen;
  Log log({.terminal = screen.terminal});
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) log.info("0123456789");
      });
  }
  std::istringstream lines(screen.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) ASSERT_TRUE(line.ends_with(" [0] 0123456789")) << line;
  EXPECT_EQ(count, 200);
}

TEST(Level, IsReadByName) {
  EXPECT_EQ(level_from("debug"), Level::debug);
  EXPECT_EQ(level_from("error"), Level::error);
  EXPECT_EQ(message_of([] { level_from("wran"); }), "unknown log level \"wran\": did you mean \"warn\"?");
}

}  // namespace
}  // namespace cairn::base
