#include <gtest/gtest.h>

#include "base/actors/simulation.h"
#include "error_of.h"

namespace cairn::base {
namespace {

constexpr double kMs = 1e-3;

// Actors one after the other, each on a queue of its own, with so many registers between two.
ActorGraph chain(const std::vector<double>& seconds, int registers, int64_t turns) {
  ActorGraph graph;
  for (size_t i = 0; i < seconds.size(); ++i) {
    const int queue = graph.add_queue({.name = "q" + std::to_string(i)});
    graph.add_actor({.name = "a" + std::to_string(i), .queue = queue, .seconds = seconds[i], .turns = i == 0 ? turns : -1});
    if (i > 0)
      graph.add_register({.name = "r" + std::to_string(i - 1),
                          .writer = static_cast<int>(i) - 1,
                          .readers = {static_cast<int>(i)},
                          .count = registers,
                          .bytes = 100});
  }
  return graph;
}

double period(const Simulation& simulation, int actor) {
  std::vector<double> begins;
  for (const TimedTurn& timed : simulation.turns)
    if (timed.turn.actor == actor) begins.push_back(timed.begin_s);
  return (begins.back() - begins[begins.size() / 2]) / static_cast<double>(begins.size() - 1 - begins.size() / 2);
}

TEST(ActorSimulation, OneRegisterLetsNeighboursTakeTurnsAndTwoLetThemOverlap) {
  const std::vector<double> load_copy_compute{10 * kMs, 10 * kMs, 12 * kMs};
  EXPECT_NEAR(period(simulate(chain(load_copy_compute, 1, 40)), 2), 22 * kMs, 1e-9);  // copy and compute, in turns
  EXPECT_NEAR(period(simulate(chain(load_copy_compute, 2, 40)), 2), 12 * kMs, 1e-9);  // the slowest alone
}

TEST(ActorSimulation, AFastProducerIsHeldBackByItsRegisters) {
  const Simulation simulation = simulate(chain({2 * kMs, 10 * kMs}, 3, 50));
  EXPECT_EQ(simulation.peak_held, std::vector<int>{3});
  EXPECT_EQ(simulation.turns.size(), 100u);
  EXPECT_NEAR(simulation.end_s, 2 * kMs + 50 * 10 * kMs, 1e-9);
  EXPECT_EQ(register_bytes(chain({1, 1}, 3, 1)), 300);
}

TEST(ActorSimulation, ABufferIsFreeWhenItsLastReaderIsDone) {
  ActorGraph graph = chain({1, 1}, 1, 4);
  const int slow = graph.add_actor({.name = "slow", .queue = graph.add_queue({.name = "q2"}), .seconds = 5});
  graph.registers[0].readers.push_back(slow);
  const Simulation simulation = simulate(graph);
  EXPECT_NEAR(simulation.end_s, 4 * (1 + 5), 1e-9);
  EXPECT_EQ(simulation.peak_held, std::vector<int>{1});
}

// Stages of a pipeline that know nothing of a schedule: a backward before a forward, and as many activations as there are registers.
ActorGraph pipeline(int stages, int64_t micro_batches, double forward_s, double backward_s) {
  ActorGraph graph;
  std::vector<int> forward(static_cast<size_t>(stages)), backward(static_cast<size_t>(stages));
  for (int s = 0; s < stages; ++s) {
    const int queue = graph.add_queue({.name = "stage " + std::to_string(s)});
    backward[static_cast<size_t>(s)] = graph.add_actor({.name = "B" + std::to_string(s), .queue = queue, .seconds = backward_s});
    forward[static_cast<size_t>(s)] =
        graph.add_actor({.name = "F" + std::to_string(s), .queue = queue, .seconds = forward_s, .turns = s == 0 ? micro_batches : -1});
  }
  for (int s = 0; s < stages; ++s) {
    const auto at = static_cast<size_t>(s);
    graph.add_register({.name = "kept " + std::to_string(s), .writer = forward[at], .readers = {backward[at]}, .count = stages - s});
    if (s + 1 == stages) continue;
    const auto link = [&](const std::string& name, int from, int to) {  // a register at either end, and what moves it
      const int mover = graph.add_actor({.name = "move " + name, .queue = graph.add_queue({.name = "link of " + name})});
      graph.add_register({.name = name + " at its source", .writer = from, .readers = {mover}, .count = 1});
      graph.add_register({.name = name + " at its destination", .writer = mover, .readers = {to}, .count = 1});
    };
    link("output " + std::to_string(s), forward[at], forward[at + 1]);
    link("gradient " + std::to_string(s), backward[at + 1], backward[at]);
  }
  return graph;
}

TEST(ActorSimulation, RegistersAloneMakeOneForwardOneBackward) {
  const ActorGraph graph = pipeline(4, 8, 20 * kMs, 40 * kMs);
  const Simulation simulation = simulate(graph);
  EXPECT_TRUE(simulation.stuck.empty());
  EXPECT_NEAR(simulation.end_s, 1.375 * 8 * 60 * kMs, 1e-9);
  std::vector<int> kept;
  for (size_t i = 0; i < graph.registers.size(); ++i)
    if (graph.registers[i].name.starts_with("kept")) kept.push_back(simulation.peak_held[i]);
  EXPECT_EQ(kept, (std::vector<int>{4, 3, 2, 1}));
}

// A reader that wants the second first needs two buffers.
ActorGraph swapped(int registers) {
  ActorGraph graph = chain({1, 1}, registers, -1);
  graph.queues[0] = {.name = "writer", .ordered = true, .order = {{0, 0}, {0, 1}, {0, 2}}};
  graph.queues[1] = {.name = "reader", .ordered = true, .order = {{1, 1}, {1, 0}, {1, 2}}};
  return graph;
}

TEST(ActorSimulation, TooFewRegistersAreRefusedBeforeStartAndTheEdgeIsNamed) {
  EXPECT_NO_THROW(check_no_deadlock(swapped(2)));
  const std::string message = message_of([] { check_no_deadlock(swapped(1)); });
  EXPECT_NE(message.find("r0 needs 2 registers and has 1"), std::string::npos) << message;
  EXPECT_NE(message.find("a0 (turn 1) waits for one of the 1 registers of r0"), std::string::npos) << message;
  EXPECT_EQ(find_register_counts(swapped(1)).counts, (std::vector<std::pair<int, int>>{{0, 2}}));
  EXPECT_TRUE(find_register_counts(swapped(2)).counts.empty());
}

TEST(ActorSimulation, AnOrderThatNoRegisterHelpsIsSaidToBeWrong) {
  ActorGraph graph = swapped(2);
  graph.queues[1].order = {{1, 7}};
  EXPECT_NE(message_of([&] { check_no_deadlock(graph); }).find("whatever the number of registers: a1 (turn 7) waits for r0"),
            std::string::npos);
}

TEST(ActorSimulation, WhatCannotBeIsRefused) {
  ActorGraph none = chain({1, 1}, 0, 1);
  EXPECT_NE(message_of([&] { simulate(none); }).find("r0: 0 registers; nothing can be handed on without one"), std::string::npos);
  ActorGraph cycle = chain({1, 1}, 1, 1);
  cycle.add_register({.name = "back", .writer = 1, .readers = {0}});
  EXPECT_NE(message_of([&] { simulate(cycle); }).find("waits, by way of others, for itself"), std::string::npos);
}

TEST(ActorSimulation, SourcesWithoutAnEndAreSimulatedForSomeRounds) {
  EXPECT_EQ(simulate(chain({1, 1}, 1, -1), 3).turns.size(), 6u);
  EXPECT_EQ(simulate(chain({1, 1, 1}, 2, 0)).turns.size(), 0u);
}

}  // namespace
}  // namespace cairn::base
