#pragma once
#include <string>
#include <vector>

#include "base/actors/graph.h"

namespace cairn::base {

struct TimedTurn {
  ActorTurn turn;
  double begin_s = 0;
  double end_s = 0;
  bool operator==(const TimedTurn&) const = default;
};

// How a graph of actors runs in virtual time.
struct Simulation {
  std::vector<TimedTurn> turns;         // in the order in which they begin
  double end_s = 0;                     // when the last turn ends
  std::vector<int> peak_held;           // by register: the most buffers that were in use at once
  std::vector<std::string> stuck = {};  // who waits for what when nobody can act any more; empty: all queues came to their end
};

// Runs the graph with the declared seconds of its actors. Deterministic. Serves as the deadlock check before a run, and as its forecast.
// A source (an actor without inputs) whose number of turns is not given has `rounds` turns.
Simulation simulate(const ActorGraph& graph, int64_t rounds = 2);

// The fewest buffers that a graph needs to come to its end.
struct RegisterCounts {
  std::vector<std::pair<int, int>> counts;  // register, and the count that it needs; empty: the graph runs as it is
  std::string wrong = {};                   // not empty: no number of buffers helps, the order itself deadlocks; who waits for what
};
RegisterCounts find_register_counts(const ActorGraph& graph, int64_t rounds = 2);

// Throws bad_input for a graph that deadlocks, naming the registers that are too small and the counts that they need.
void check_no_deadlock(const ActorGraph& graph, int64_t rounds = 2);

}  // namespace cairn::base
