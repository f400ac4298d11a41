#include <atomic>
#include <future>
#include <set>

#include <gtest/gtest.h>

#include "base/actors/runtime.h"
#include "base/check.h"
#include "error_of.h"

namespace cairn::base {
namespace {

using Nothing = std::optional<PendingTurn>;

// Source, middle and sink with so many registers; the sink is the caller's.
ActorGraph three(int registers, int64_t turns) {
  ActorGraph graph;
  for (const char* name : {"source", "middle", "sink"}) graph.add_queue({.name = name});
  graph.add_actor({.name = "source", .queue = 0, .turns = turns});
  graph.add_actor({.name = "middle", .queue = 1});
  graph.add_actor({.name = "sink", .queue = 2});
  graph.add_register({.name = "first", .writer = 0, .readers = {1}, .count = registers});
  graph.add_register({.name = "second", .writer = 1, .readers = {2}, .count = registers});
  return graph;
}

TEST(ActorRuntime, HandsOnEverythingInOrderAndEnds) {
  for (const int registers : {1, 2, 3, 7}) {
    for (const int64_t turns : {0, 1, 2, 101}) {
      std::vector<int64_t> got;
      ActorRuntime runtime(three(registers, turns),
                           {[](TurnBuffers& turn) -> Nothing {
                              turn.output(0) = turn.tag() * 3;
                              return {};
                            },
                            [](TurnBuffers& turn) -> Nothing {
                              turn.output(0) = std::any_cast<int64_t>(turn.input(0)) + 1;
                              return {};
                            },
                            [&](TurnBuffers& turn) -> Nothing {
                              got.push_back(std::any_cast<int64_t>(turn.input(0)));
                              return {};
                            }},
                           {2});
      const int sink = 2;
      runtime.run_here(std::span(&sink, 1));
      ASSERT_EQ(static_cast<int64_t>(got.size()), turns);
      for (int64_t i = 0; i < turns; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], 3 * i + 1);
      for (const int held : runtime.peak_held()) EXPECT_LE(held, registers);
    }
  }
}

// The source's second turn ends only once the sink is in its first: no run without overlap would come to its end.
TEST(ActorRuntime, TwoRegistersOverlap) {
  ActorGraph graph;
  graph.add_queue({.name = "source"});
  graph.add_queue({.name = "sink"});
  graph.add_actor({.name = "source", .queue = 0, .turns = 2});
  graph.add_actor({.name = "sink", .queue = 1});
  graph.add_register({.name = "r", .writer = 0, .readers = {1}, .count = 2});
  std::promise<void> sink_begun, source_again;
  ActorRuntime runtime(graph,
                       {[&](TurnBuffers& turn) -> Nothing {
                          if (turn.tag() == 1) {
                            source_again.set_value();
                            sink_begun.get_future().wait();
                          }
                          return {};
                        },
                        [&](TurnBuffers& turn) -> Nothing {
                          if (turn.tag() == 0) {
                            sink_begun.set_value();
                            source_again.get_future().wait();
                          }
                          return {};
                        }},
                       {1});
  const int sink = 1;
  runtime.run_here(std::span(&sink, 1));
  EXPECT_EQ(runtime.peak_held(), std::vector<int>{2});
}

TEST(ActorRuntime, AFastSourceHoldsNoMoreThanItsRegisters) {
  ActorGraph graph;
  graph.add_queue({.name = "source"});
  graph.add_queue({.name = "sink"});
  graph.add_actor({.name = "source", .queue = 0, .turns = 40});
  graph.add_actor({.name = "sink", .queue = 1});
  graph.add_register({.name = "r", .writer = 0, .readers = {1}, .count = 3});
  std::atomic<int> allocated = 0;
  int64_t taken = 0;
  ActorRuntime runtime(graph,
                       {[&](TurnBuffers& turn) -> Nothing {
                          if (!turn.output(0).has_value()) {  // memory is used again
                            turn.output(0) = std::vector<char>(10 << 10);
                            ++allocated;
                          }
                          return {};
                        },
                        [&](TurnBuffers&) -> Nothing {
                          ++taken;
                          return {};
                        }},
                       {1});
  while (runtime.turn_here(1)) {
  }
  EXPECT_EQ(taken, 40);
  EXPECT_LE(allocated, 3);
  EXPECT_FALSE(runtime.turn_here(1));
}

TEST(ActorRuntime, WhatABodyThrowsReachesTheCallerAndEndsTheThreads) {
  ActorRuntime runtime(three(2, 1000),
                       {[](TurnBuffers&) -> Nothing { return {}; },
                        [](TurnBuffers& turn) -> Nothing {
                          if (turn.tag() == 5) fail_input("the disk is full");
                          return {};
                        },
                        [](TurnBuffers&) -> Nothing { return {}; }},
                       {2});
  const int sink = 2;
  for (int again = 0; again < 2; ++again) EXPECT_EQ(message_of([&] { runtime.run_here(std::span(&sink, 1)); }), "the disk is full");
}

TEST(ActorRuntime, MayBeDroppedAtAnyMoment) {
  for (int taken = 0; taken < 4; ++taken) {
    const ActorBody nothing = [](TurnBuffers&) -> Nothing { return {}; };
    ActorRuntime runtime(three(2, -1), {nothing, nothing, nothing}, {2});
    for (int i = 0; i < taken; ++i) EXPECT_TRUE(runtime.turn_here(2));
  }
}

// One thread: a sender whose messages land only when somebody waits for them, and a worker that has two registers for what it sends.
TEST(ActorRuntime, ATurnInFlightKeepsItsInputsUntilItIsDone) {
  ActorGraph graph;
  graph.add_queue({.name = "work"});
  graph.add_queue({.name = "send"});
  graph.add_actor({.name = "work", .queue = 0, .turns = 5});
  graph.add_actor({.name = "send", .queue = 1});
  graph.add_register({.name = "out", .writer = 0, .readers = {1}, .count = 2});
  std::vector<std::string> story;
  ActorRuntime runtime(graph,
                       {[&](TurnBuffers& turn) -> Nothing {
                          story.push_back("work " + std::to_string(turn.tag()));
                          return {};
                        },
                        [&](TurnBuffers& turn) -> Nothing {
                          const int64_t tag = turn.tag();
                          story.push_back("send " + std::to_string(tag));
                          return PendingTurn{[] { return false; }, [&, tag] { story.push_back("landed " + std::to_string(tag)); }};
                        }},
                       {0, 1});
  const std::vector<int> here{1, 0};
  int between = 0;
  runtime.run_here(here, [&] { ++between; });
  EXPECT_EQ(story, (std::vector<std::string>{"work 0", "send 0", "work 1", "send 1", "landed 0", "work 2", "send 2", "landed 1", "work 3",
                                             "send 3", "landed 2", "work 4", "send 4", "landed 3", "landed 4"}));
  EXPECT_EQ(between, 10);
}

TEST(ActorRuntime, AnOrderIsKeptWhateverIsReady) {
  ActorGraph graph = three(3, 3);
  graph.queues[2] = {.name = "sink", .ordered = true, .order = {{2, 2}, {2, 0}, {2, 1}}};
  std::vector<int64_t> got;
  const ActorBody pass = [](TurnBuffers&) -> Nothing { return {}; };
  ActorRuntime runtime(graph,
                       {pass, pass,
                        [&](TurnBuffers& turn) -> Nothing {
                          got.push_back(turn.tag());
                          return {};
                        }},
                       {2});
  const int sink = 2;
  runtime.run_here(std::span(&sink, 1));
  EXPECT_EQ(got, (std::vector<int64_t>{2, 0, 1}));
}

}  // namespace
}  // namespace cairn::base
