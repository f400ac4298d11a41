#include "base/run_events.h"

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "harness/scratch_folder.h"

namespace cairn::base {
namespace {

TEST(RunEvents, KeepTheirOrderAndFields) {
  const harness::ScratchFolder scratch;
  const RunEvents events(scratch.path());
  EXPECT_TRUE(events.write("rank_lost", {{"rank", 3}, {"cause", "killed"}}));
  EXPECT_TRUE(events.write("generation_started", {{"generation", 2}}));
  const std::vector<Json> read = read_events(scratch.path());
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0]["event"], "rank_lost");
  EXPECT_EQ(read[0]["rank"], 3);
  EXPECT_GT(read[0]["time"].get<double>(), 1.7e9);
  EXPECT_EQ(read[1]["generation"], 2);
}

TEST(RunEvents, OfSeveralWritersNeverMix) {
  const harness::ScratchFolder scratch;
  std::vector<std::jthread> writers;
  for (int writer = 0; writer < 4; ++writer)
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 50; ++i) RunEvents(scratch.path()).write("test", {{"writer", writer}, {"text", std::string(997, 'x')}});
    });
  writers.clear();
  EXPECT_EQ(read_events(scratch.path()).size(), 200u);
}

TEST(RunEvents, GoOnAfterAnIncompleteLine) {
  const harness::ScratchFolder scratch;
  RunEvents(scratch.path()).write("one");
  std::ofstream(scratch / RunEvents::kFile, std::ios::app) << "{\"time\":1,\"eve";
  RunEvents(scratch.path()).write("two");
  const std::vector<Json> read = read_events(scratch.path());
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[1]["event"], "two");
}

TEST(RunEvents, NeverEndARun) {
  const harness::ScratchFolder scratch;
  EXPECT_FALSE(RunEvents(scratch / "missing").write("one"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "missing"));
  EXPECT_FALSE(RunEvents({}).write("one"));
  EXPECT_TRUE(read_events(scratch / "missing").empty());
}

}  // namespace
}  // namespace cairn::base
