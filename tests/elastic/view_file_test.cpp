#include "elastic/diagnosis/view_file.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "elastic/diagnosis/hang.h"
#include "elastic/diagnosis/monitor.h"
#include "fake_ranks.h"
#include "harness/scratch_folder.h"

namespace cairn::elastic {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

FakeRanks hung() {
  FakeRanks fake(3);
  fake.group(10, {0, 1, 2}, "dp");
  fake.enter_and_wait(0, 10, 93s);
  fake.enter_and_wait(2, 10, 93s);
  fake.idle(1, comm::Activity::computing, 93s);
  fake.peer(0, 1).posted_bytes = 5;
  fake.log(0).messages.push_back({1, 4096, 92s, 1ms});
  return fake;
}

TEST(ViewFile, GivesTheSameDiagnosis) {
  const FakeRanks fake = hung();
  const std::vector<RankView> read = views_from_json(to_json(fake.views), "here");
  const auto before = find_hang(fake.views, {}), after = find_hang(read, {});
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(to_line(after[0]), to_line(before[0]));
  EXPECT_EQ(to_json(read), to_json(fake.views));
}

TEST(ViewFile, MachinesAreReadTogether) {
  const harness::ScratchFolder folder;
  const FakeRanks fake = hung();
  write_views(folder.path(), {fake.views[2]});
  write_views(folder.path(), {fake.views[0], fake.views[1]});
  const std::vector<RankView> all = read_views(folder.path());
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].rank, 1);
  EXPECT_EQ(find_hang(all, {}).at(0).rank, 1);
  EXPECT_TRUE(read_views(folder / "none").empty());
}

TEST(ViewFile, WhatIsNoRecordIsRefused) {
  const auto refusal = [](const std::string& text) {
    try {
      views_from_json(text, "file.json");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal("{"), HasSubstr("file.json: "));
  EXPECT_THAT(refusal("{}"), HasSubstr("not the records of ranks"));
  EXPECT_THAT(refusal(R"({"ranks": [{"rank": -4, "host": "", "liveness": 0, "how": "", "now": 0}]})"), HasSubstr("there is no rank -4"));
  EXPECT_THAT(refusal(R"({"ranks": [{"rank": "x"}]})"), HasSubstr("not the records of ranks"));
}

TEST(Monitor, ReportsAFindingOnce) {
  const FakeRanks fake = hung();
  Monitor monitor({});
  EXPECT_EQ(monitor.look(fake.views).size(), 1u);
  EXPECT_TRUE(monitor.look(fake.views).empty());
  const FakeRanks fine(3);
  for (int look = 0; look < 61; ++look) EXPECT_TRUE(monitor.look(fine.views).empty());
  EXPECT_EQ(monitor.look(fake.views).size(), 1u);
}

}  // namespace
}  // namespace cairn::elastic
