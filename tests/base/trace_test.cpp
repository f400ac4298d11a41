#include "base/trace.h"

#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/files/faulty_disk.h"
#include "base/json.h"
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
      inner.arg("layer", 3).arg("name", "mlp");
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
  {
    auto span = trace.span("x");
    span.arg("a", 1);
  }
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
  const harness::ScratchFolder folder;
  VirtualClock clock;
  Trace trace(clock, 2);
  {
    auto span = trace.span("all_reduce \"w\"", "comm");
    span.arg("bytes", 12).arg("rate", 0.5).arg("of", "w\xff");
    clock.advance_by(1234567ns);
  }
  trace.write_perfetto(folder / "trace.json");
  const Json json = parse_json(folder.text_of("trace.json"));
  const Json& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["ph"], "M");
  EXPECT_EQ(events[0]["args"]["name"], "rank 2");
  EXPECT_EQ(events[1]["name"], "all_reduce \"w\"");
  EXPECT_EQ(events[1]["ph"], "X");
  EXPECT_EQ(events[1]["cat"], "comm");
  EXPECT_EQ(events[1]["pid"], 2);
  EXPECT_EQ(events[1]["ts"], 0.0);
  EXPECT_EQ(events[1]["dur"], 1234.567);  // microseconds
  EXPECT_EQ(events[1]["args"]["bytes"], 12);
  EXPECT_EQ(events[1]["args"]["rate"], 0.5);
}

TEST(Trace, MergesRanksFromMemoryAndFromFiles) {
  const harness::ScratchFolder folder;
  VirtualClock clock;
  Trace zero(clock, 0), one(clock, 1), empty(clock, 2);
  (void)zero.span("a");
  (void)one.span("b");
  write_perfetto(folder / "both.json", {&zero, &one, &empty});
  zero.write_perfetto(folder / "0.json");
  one.write_perfetto(folder / "1.json");
  empty.write_perfetto(folder / "2.json");
  merge_perfetto(folder / "merged.json", {folder / "0.json", folder / "1.json", folder / "2.json"});
  EXPECT_EQ(parse_json(folder.text_of("merged.json")), parse_json(folder.text_of("both.json")));
  std::set<int> ranks;
  const Json merged = parse_json(folder.text_of("merged.json"));
  for (const Json& event : merged["traceEvents"]) ranks.insert(event["pid"].get<int>());
  EXPECT_EQ(ranks, (std::set<int>{0, 1, 2}));
  merge_perfetto(folder / "none.json", {});
  EXPECT_TRUE(parse_json(folder.text_of("none.json"))["traceEvents"].empty());
}

TEST(Trace, SaysWhichPartIsNoTrace) {
  const harness::ScratchFolder folder;
  const auto path = folder.file("x.json", "[1, 2");
  const Error error = error_of([&] { merge_perfetto(folder / "out.json", {path}); });
  EXPECT_EQ(error.kind(), Error::Kind::corrupt_file);
  EXPECT_EQ(error.what(), path.string() + ": not a trace (no list \"traceEvents\")");
  EXPECT_FALSE(std::filesystem::exists(folder / "out.json"));
}

TEST(Trace, SaysHowManyWereDroppedAndThatTheDiskIsFull) {
  const harness::ScratchFolder folder;
  VirtualClock clock;
  Trace trace(clock, 0, 1);
  (void)trace.span("a");
  (void)trace.span("b");
  trace.write_perfetto(folder / "t.json");
  EXPECT_NE(folder.text_of("t.json").find("rank 0 (1 older events dropped)"), std::string::npos);
  const FaultyDisk disk({.full_after_bytes = 10});
  EXPECT_EQ(error_of([&] { trace.write_perfetto(folder / "u.json", disk); }).kind(), Error::Kind::disk);
}

}  // namespace
}  // namespace cairn::base
