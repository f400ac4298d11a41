// Schedules as files: there and back, PyTorch's dialect, and files that lie.
#include <gtest/gtest.h>

#include "base/error.h"
#include "parallel/schedule/csv.h"

namespace cairn::parallel {
namespace {

std::string why_not_read(std::string_view text) {
  try {
    read_schedule_csv(text, "s.csv");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "it was read";
}

TEST(ScheduleCsv, RoundTrips) {
  for (const std::string& name : schedule_names()) {
    const Schedule schedule = make_schedule({.name = name, .ranks = 3, .micro_batches = 9});
    Schedule back = read_schedule_csv(to_csv(schedule), "file.csv");
    EXPECT_EQ(back.name, "file.csv");
    back.name = schedule.name;
    EXPECT_EQ(back, schedule) << name;
  }
}

TEST(ScheduleCsv, ReadsWhatPyTorchWrites) {
  // Empty cells where a rank waits, line ends of its csv module, and actions that it overlaps.
  const Schedule schedule = read_schedule_csv("0F0,,,0F1 ,(0F2;0B0)OVERLAP_F_B,0B1,0B2\r\n,1F0,1I0,1F1,1W0,1B1,,1F2,1B2,\r\n\r\n", "s.csv");
  EXPECT_EQ(schedule.micro_batches, 3);
  EXPECT_EQ(schedule.rank_of_stage, (std::vector<int>{0, 1}));
  EXPECT_EQ(to_csv(schedule), "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1I0,1F1,1W0,1B1,1F2,1B2\n");
}

TEST(ScheduleCsv, NamesFileLineAndCell) {
  const std::string form = "a cell is a stage, one of F B I W R O, and a micro-batch, such as 0F0; or a stage and UNSHARD or REDUCE_GRAD";
  EXPECT_EQ(why_not_read("0F0,0B0\n1F0,1X0"), "s.csv:2: cell 2, \"1X0\": " + form);
  for (const char* cell : {"F0", "0F", "0", "0F-1", "-1F0", "0F0x", "x", "0F 0", "\"0F0\""})
    EXPECT_EQ(why_not_read("0F0,," + std::string(cell)), "s.csv:1: cell 3, \"" + std::string(cell) + "\": " + form);
  EXPECT_EQ(why_not_read("0F0,0B0\n0F1"), "s.csv:2: cell 1, \"0F1\": stage 0 is on rank 0 (line 1) already; a stage has one rank");
  EXPECT_EQ(why_not_read("0SEND_F0"),
            "s.csv:1: cell 1, \"0SEND_F0\": messages follow from the route by themselves; leave out SEND and RECV");
  EXPECT_EQ(why_not_read("(0F0;0B0)"),
            "s.csv:1: cell 1, \"(0F0;0B0)\": brackets are for two actions at once, such as (0F4;7B0)OVERLAP_F_B");
  EXPECT_NE(why_not_read("(;0F0)OVERLAP_F_B").find(form), std::string::npos);
}

TEST(ScheduleCsv, RefusesSizesThatNobodyMeans) {
  EXPECT_EQ(why_not_read("1048577F0"), "s.csv:1: cell 1, \"1048577F0\": the stage is too large, at most 1048576 is taken");
  EXPECT_EQ(why_not_read("0F99999999999999999999"),
            "s.csv:1: cell 1, \"0F99999999999999999999\": the micro-batch is too large, at most 1048576 is taken");
  EXPECT_NE(why_not_read(std::string(100, '7')).find("100 bytes long, at most 64 are taken"), std::string::npos);
  std::string many;
  for (int i = 0; i <= kPipelineRanksMax; ++i) many += std::to_string(i) + "F0\n";
  EXPECT_EQ(why_not_read(many), "s.csv:4097: a line is a rank, at most 4096 are taken");
}

TEST(ScheduleCsv, RefusesWhatCannotRun) {
  EXPECT_EQ(why_not_read(""), "s.csv: no action; each line is a rank, with cells such as 0F0");
  EXPECT_EQ(why_not_read("0F0,0B0\n,,\n1F0,1B0"), "s.csv:2: no action; each line is a rank, and each rank runs a stage");
  EXPECT_EQ(why_not_read("0F0,0B0\n2F0,2B0"), "s.csv: no rank runs stage 1, but there is a stage 2");
  // The largest numbers that are read cost nothing: what is missing is found without a table of all.
  EXPECT_EQ(why_not_read("1048576F1048576"), "s.csv: no rank runs stage 0, but there is a stage 1048576");
  EXPECT_EQ(why_not_read("0F1048576"),
            "schedule s.csv: 0F0 is missing; each of the 1 stages needs a forward and a backward of each of the 1048577 micro-batches");
  EXPECT_EQ(why_not_read("0F0,0B0,0F0"), "schedule s.csv: 0F0 is there twice; each action runs once");
  EXPECT_EQ(
      why_not_read("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1"),
      "schedule s.csv: deadlock: rank 0 at 0B0 waits for 1B0 of rank 1, rank 1 at 1F1 waits for 0F1 of rank 0; put one of them earlier");
}

}  // namespace
}  // namespace cairn::parallel
