#include <gtest/gtest.h>

#include "program.h"

namespace cairn::cli {
namespace {

std::string schedule_says(const harness::ScratchFolder& scratch, std::vector<std::string> arguments, int code = 0) {
  arguments.insert(arguments.begin(), "schedule");
  const Outcome outcome = cairn(scratch, arguments);
  EXPECT_EQ(outcome.code, code) << outcome.output;
  return outcome.output;
}

TEST(ScheduleCommand, ShowsWhatAScheduleCosts) {
  const harness::ScratchFolder scratch;
  EXPECT_EQ(schedule_says(scratch, {"1f1b", "--ranks", "2", "--micro-batches", "3", "--costs", "0.02,0.02,0.02"}),
            "1f1b: 2 ranks, 2 stages, 3 micro-batches\n"
            "step 0.24 s, step/ideal 1.33333, bubble 25.0 %\n"
            "rank    bubble          busy  waits inside  live micro-batches  live activations\n"
            "   0    25.0 %        0.18 s        0.06 s                   2                 2\n"
            "   1    25.0 %        0.18 s           0 s                   1                 1\n");
  EXPECT_NE(schedule_says(scratch, {"1f1b", "--ranks", "2", "--micro-batches", "3", "--latency", "0.5"}).find("step 14 s"),
            std::string::npos);
  EXPECT_NE(schedule_says(scratch, {}).find("1f1b: 4 ranks, 4 stages, 8 micro-batches"), std::string::npos);
  EXPECT_NE(schedule_says(scratch, {"interleaved", "--stages-per-rank", "4"}).find("16 stages"), std::string::npos);
}

TEST(ScheduleCommand, WritesReadsAndDraws) {
  const harness::ScratchFolder scratch;
  const std::string made = schedule_says(scratch, {"zbv", "--ranks", "3", "--out-csv", "v.csv", "--svg", "v.svg"});
  EXPECT_NE(made.find("v.csv: "), std::string::npos);
  EXPECT_EQ(scratch.text_of("v.csv").substr(0, 16), "0F0,0F1,0F2,0F3,");
  EXPECT_NE(scratch.text_of("v.svg").find("zbv: 3 ranks, 8 micro-batches, bubble 4.0 %"), std::string::npos);
  const std::string read = schedule_says(scratch, {"--csv", "v.csv"});
  EXPECT_EQ(read.substr(0, read.find('\n')), "v.csv: 3 ranks, 6 stages, 8 micro-batches");
  const auto second_line = [](const std::string& text) { return text.substr(text.find('\n'), text.find('\n', text.find('\n') + 1)); };
  EXPECT_EQ(second_line(read).substr(0, 20), second_line(made).substr(0, 20));
}

TEST(ScheduleCommand, ComparesAllAndSaysWhichCannot) {
  const harness::ScratchFolder scratch;
  const std::string all = schedule_says(scratch, {"--all", "--ranks", "4", "--micro-batches", "6"});
  for (const char* row : {"gpipe              4    33.3 %          27 s         1.5                   6                 6\n",
                          "zb_h1              4    14.3 %          21 s     1.16667                   4                 4\n",
                          "interleaved   schedule interleaved: 6 micro-batches over 4 ranks: must be a multiple",
                          "dualpipev     schedule dualpipev: 6 micro-batches over 4 ranks: must be at least 8"})
    EXPECT_NE(all.find(row), std::string::npos) << row << "\n" << all;
}

TEST(ScheduleCommand, RefusesWhatItCannotDo) {
  const harness::ScratchFolder scratch;
  scratch.file("bad.csv", "0F0,0B0\n1F0,1Q0\n");
  const auto refused = [&](std::vector<std::string> arguments, const std::string& part) {
    const std::string said = schedule_says(scratch, std::move(arguments), 2);
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  refused({"1f1v"}, "unknown pipeline schedule \"1f1v\": did you mean \"1f1b\"?");
  refused({"--csv", "bad.csv"}, "bad.csv:2: cell 2, \"1Q0\": a cell is");
  refused({"zbv", "--csv", "bad.csv"}, "the file says what runs where");
  refused({"--costs", "1,2,-3"}, "--costs -3: must be numbers, 0 or more");
  refused({"--costs", "0,0,0"}, "at least one of them must be more than 0");
  refused({"--latency", "-1"}, "--latency -1: must be a number, 0 or more");
  refused({"--all", "--svg", "a.svg"}, "--all compares every schedule");
  refused({"--ranks", "0"}, "--ranks");
}

}  // namespace
}  // namespace cairn::cli
