#include "base/terminal.h"

#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/progress.h"

namespace cairn::base {
namespace {

using namespace std::chrono_literals;

const std::string kErase = "\r\x1b[2K";

struct Screen {
  explicit Screen(bool live, int columns = 80) : terminal([this](std::string_view text) { out += text; }, live, columns) {}
  std::string out;
  Terminal terminal;
};

TEST(Terminal, PutsLinesAboveTheLiveLine) {
  Screen screen(/*live=*/true);
  screen.terminal.show_live("step 1");
  screen.terminal.line("hello");
  EXPECT_EQ(screen.out, kErase + "step 1" + kErase + "hello\nstep 1");
  screen.out.clear();
  screen.terminal.end_live();
  screen.terminal.line("bye");
  EXPECT_EQ(screen.out, kErase + "bye\n");
}

TEST(Terminal, CutsTheLiveLineBetweenCharacters) {
  Screen screen(true, 4);
  screen.terminal.show_live("a\xc3\xa9\xc3\xb6\xc3\xbcx");
  EXPECT_EQ(screen.out, kErase + "a\xc3\xa9\xc3\xb6");
}

TEST(Terminal, ShowsNoLiveLineWhereItCannot) {
  Screen screen(false);
  screen.terminal.show_live("step 1");
  screen.terminal.line("hello");
  EXPECT_EQ(screen.out, "hello\n");
}

TEST(Terminal, LetsNoTextSteerTheScreen) {
  EXPECT_EQ(printable("a\x1b[2J\r\x07z\n\t"), "a?[2J??z\n\t");
  EXPECT_EQ(printable("\xc3\xa9\x9b[2J"), "\xc3\xa9\xef\xbf\xbd[2J");
  Screen screen(true);
  screen.terminal.show_live("a\nb");
  EXPECT_EQ(screen.out, kErase + "a b");
}

TEST(Progress, WritesPlainLinesAtIntervals) {
  Screen screen(false);
  VirtualClock clock;
  Progress progress(screen.terminal, clock, 1s);
  for (int step = 0; step < 30; ++step) {
    if (progress.due()) progress.update("step " + std::to_string(step));
    clock.advance_by(100ms);
  }
  progress.finish("done");
  EXPECT_EQ(screen.out, "step 0\nstep 10\nstep 20\ndone\n");
}

TEST(Progress, RewritesOneLineOnAScreen) {
  Screen screen(true);
  VirtualClock clock;
  Progress progress(screen.terminal, clock, 1s);
  progress.update("step 0");
  progress.update("step 1");  // too soon
  clock.advance_by(100ms);
  progress.update("step 2");
  progress.finish("done");
  EXPECT_EQ(screen.out, kErase + "step 0" + kErase + "step 2" + kErase + "done\n");
}

TEST(Progress, LeavesNothingWhereTheLastWordIsEmpty) {
  Screen screen(true);
  VirtualClock clock;
  Progress progress(screen.terminal, clock);
  progress.update("step 0");
  progress.finish("");
  EXPECT_EQ(screen.out, kErase + "step 0" + kErase);
}

}  // namespace
}  // namespace cairn::base
