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

// How a graph of actors ran in virtual time.
struct Simulation {
  std::vector<TimedTurn> turns;  // in the order of their begin
  double end_s = 0;
  std::vector<int> peak_held;           // buffers of each register that were in use at once
  std::vector<std::string> stuck = {};  // who waited for what when nobody could act any more; empty: it came to its end
};

// Plays the rules of actors with declared costs: the check for deadlocks before a run, and its forecast. Deterministic. Actors without
// inputs and without a number of turns have `rounds`.
Simulation simulate(const ActorGraph& graph, int64_t rounds = 2);

// The same graph with as few more buffers as it takes to come to its end, one register at a time.
struct RegisterCounts {
  std::vector<std::pair<int, int>> counts;  // register and the count that it needs; empty: it runs as it is
  std::string wrong = {};                   // not empty: no number of buffers helps, the order itself is wrong; who waits for what
};
RegisterCounts find_register_counts(const ActorGraph& graph, int64_t rounds = 2);

// Refuses a graph that would come to a standstill, and names the registers and the counts that they need.
void check_no_deadlock(const ActorGraph& graph, int64_t rounds = 2);

}  // namespace cairn::base
