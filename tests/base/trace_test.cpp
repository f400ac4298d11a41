#include "base/trace.h"

#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/files/faulty_disk.h"
#include "base/json.h"
#include "base/memory_tags.h"
#include "error_of.h"
#include "harness/scratch_folder.h"

namespace cairn::base {
namespace {

using namespace std::chrono_literals;

TEST(Trace, MeasuresSpansOnItsClock) {
  VirtualClock clock;
  Trace trace(clock, 0);
  clock.advance_by(5us);
  {
    auto outer = trace.span("step", "train");
    clock.advance_by(10us);
    {
      auto inner = trace.span("forward");
      clock.advance_by(1500ns);
    }
  }
  const auto events = trace.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].name, "forward");  // in order of ending
  EXPECT_EQ(events[0].begin, 15us);
  EXPECT_EQ(events[0].length, 1500ns);
  EXPECT_EQ(events[1].name, "step");
  EXPECT_EQ(events[1].category, "train");
  EXPECT_EQ(events[1].length, 11500ns);
}

TEST(Trace, CountsASpanOnceHoweverMoved) {
  VirtualClock clock;
  Trace trace(clock, 0);
  {
    auto a = trace.span("x");
    auto b = std::move(a);
  }
  EXPECT_EQ(trace.events().size(), 1u);
}

TEST(Trace, ForgetsTheOldestAndCountsThem) {
  VirtualClock clock;
  Trace trace(clock, 0, /*events_max=*/3);
  for (int i = 0; i < 5; ++i) (void)trace.span(std::to_string(i));
  const auto events = trace.events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].name, "2");
  EXPECT_EQ(events[2].name, "4");
  EXPECT_EQ(trace.dropped(), 2);
}

TEST(Trace, CanBeOff) {
  VirtualClock clock;
  Trace trace(clock, 0, 0);
  (void)trace.span("x");
  EXPECT_TRUE(trace.events().empty());
  EXPECT_EQ(trace.dropped(), 0);
}

TEST(Trace, NumbersThreads) {
  const RealClock clock;
  Trace trace(clock, 0);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) (void)trace.span("work");
      });
  }
  EXPECT_EQ(trace.events().size(), 400u);
  for (const TraceEvent& event : trace.events()) ASSERT_TRUE(event.thread >= 0 && event.thread < 4);
}

TEST(Trace, WritesWhatPerfettoReads) {
  VirtualClock clock;
  Trace trace(clock, 2);
  {
    auto span = trace.span("all_reduce \"w\xff\"", "comm");
    clock.advance_by(1234567ns);
  }
  const Json json = parse_json(perfetto_json(trace));
  const Json& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["ph"], "M");
  EXPECT_EQ(events[0]["args"]["name"], "rank 2");
  EXPECT_EQ(events[1]["name"], "all_reduce \"w\xef\xbf\xbd\"");
  EXPECT_EQ(events[1]["ph"], "X");
  EXPECT_EQ(events[1]["cat"], "comm");
  EXPECT_EQ(events[1]["pid"], 2);
  EXPECT_EQ(events[1]["ts"], 0.0);
  EXPECT_EQ(events[1]["dur"], 1234.567);  // microseconds
}

TEST(Trace, MergesRanksFromMemoryAndFromText) {
  const harness::ScratchFolder folder;
  VirtualClock clock;
  Trace zero(clock, 0), one(clock, 1), empty(clock, 2);
  (void)zero.span("a");
  (void)one.span("b");
  PerfettoFile file(folder / "merged.json");
  file.add(zero);
  file.add(perfetto_json(one), "rank 1");
  file.add(perfetto_json(empty), "rank 2");
  EXPECT_FALSE(std::filesystem::exists(folder / "merged.json"));
  file.commit();
  std::set<std::pair<int, std::string>> found;
  const Json merged = parse_json(folder.text_of("merged.json"));
  for (const Json& event : merged["traceEvents"]) found.emplace(event["pid"].get<int>(), event["name"].get<std::string>());
  EXPECT_EQ(found,
            (std::set<std::pair<int, std::string>>{{0, "process_name"}, {1, "process_name"}, {2, "process_name"}, {0, "a"}, {1, "b"}}));
}

TEST(Trace, SaysWhichPartIsNoTrace) {
  const harness::ScratchFolder folder;
  PerfettoFile file(folder / "out.json");
  const Error error = error_of([&] { file.add("[1, 2", "rank 3"); });
  EXPECT_EQ(error.kind(), Error::Kind::corrupt_file);
  EXPECT_STREQ(error.what(), "rank 3: not a trace (no list \"traceEvents\")");
}

TEST(Trace, SaysHowManyWereDroppedAndThatTheDiskIsFull) {
  const harness::ScratchFolder folder;
  VirtualClock clock;
  Trace trace(clock, 0, 1);
  (void)trace.span("a");
  (void)trace.span("b");
  EXPECT_NE(perfetto_json(trace).find("rank 0 (1 older events dropped)"), std::string::npos);
  const FaultyDisk disk({.full_after_bytes = 10});
  PerfettoFile file(folder / "u.json", disk);
  file.add(trace);
  EXPECT_EQ(error_of([&] { file.commit(); }).kind(), Error::Kind::disk);
}

TEST(Trace, TakesNoMoreMemoryAsItFills) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer keeps freed memory";
#endif
  VirtualClock clock;
  Trace trace(clock, 0);
  (void)trace.span("wait for a neighbour to receive", "pipeline");
  const int64_t before = resident_bytes();
  for (int64_t i = 0; i < Trace::kEventsMax; ++i) (void)trace.span("wait for a neighbour to receive", "pipeline");
  EXPECT_LT(resident_bytes() - before, int64_t{1} << 20);  // 200,000 events, and 112 bytes for each of them before
}

}  // namespace
}  // namespace cairn::base
