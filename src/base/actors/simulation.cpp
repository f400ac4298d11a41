#include "base/actors/simulation.h"

#include <algorithm>
#include <queue>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "base/actors/counters.h"
#include "base/check.h"

namespace cairn::base {
namespace {

struct Ending {
  double end_s = 0;
  int64_t number = 0;  // of the turn: what began first ends first, at equal times
  int queue = 0;
  Turn turn = {};
  bool operator>(const Ending& other) const { return std::pair(end_s, number) > std::pair(other.end_s, other.number); }
};

// Gives sources without a number of turns `rounds` turns: otherwise the simulation would not end.
ActorGraph bounded(ActorGraph graph, int64_t rounds) {
  std::vector<bool> fed(graph.actors.size());
  for (const RegisterSpec& one : graph.registers)
    for (const int reader : one.readers) fed[static_cast<size_t>(reader)] = true;
  for (size_t i = 0; i < graph.actors.size(); ++i)
    if (!fed[i] && graph.actors[i].turns < 0 && !graph.queues[static_cast<size_t>(graph.actors[i].queue)].ordered)
      graph.actors[i].turns = rounds;
  return graph;
}

std::string waits_for(const ActorGraph& graph, const ActorCounters::Blocker& blocker) {
  const RegisterSpec& one = graph.registers[static_cast<size_t>(blocker.index)];
  const std::string& actor = graph.actors[static_cast<size_t>(blocker.actor)].name;
  return blocker.full ? fmt::format("{} (turn {}) waits for one of the {} registers of {}", actor, blocker.tag, one.count, one.name)
                      : fmt::format("{} (turn {}) waits for {}", actor, blocker.tag, one.name);
}

struct SimulationRun {
  Simulation simulation;
  std::vector<ActorCounters::Blocker> blockers;
};

SimulationRun run_to_end(const ActorGraph& graph) {
  ActorCounters counters(graph);
  SimulationRun run;
  Simulation& simulation = run.simulation;
  simulation.peak_held.assign(graph.registers.size(), 0);
  const int queues = static_cast<int>(graph.queues.size());
  std::vector<bool> busy(graph.queues.size());
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> endings;
  double now_s = 0;
  int64_t number = 0;
  // Queues that may be able to act: at first all, then those for which something changed.
  std::set<int> look;
  for (int queue = 0; queue < queues; ++queue) look.insert(queue);
  const auto queue_of = [&](int actor) { return graph.actors[static_cast<size_t>(actor)].queue; };
  while (true) {
    for (const int queue : std::exchange(look, {})) {
      if (busy[static_cast<size_t>(queue)]) continue;
      const auto turn = counters.begin(queue);
      if (!turn) continue;
      busy[static_cast<size_t>(queue)] = true;
      for (const Turn::Slot& slot : turn->outputs)
        simulation.peak_held[static_cast<size_t>(slot.index)] =
            std::max(simulation.peak_held[static_cast<size_t>(slot.index)], counters.held(slot.index));
      const double end_s = now_s + graph.actors[static_cast<size_t>(turn->actor)].seconds;
      simulation.turns.push_back({{turn->actor, turn->tag}, now_s, end_s});
      endings.push({end_s, number++, queue, *turn});
    }
    if (endings.empty()) break;
    // Everything that ends now, before any queue chooses its next turn.
    now_s = endings.top().end_s;
    while (!endings.empty() && endings.top().end_s == now_s) {
      const Turn& turn = endings.top().turn;
      counters.finish(turn);
      busy[static_cast<size_t>(endings.top().queue)] = false;
      look.insert(endings.top().queue);
      for (const Turn::Slot& slot : turn.inputs) look.insert(queue_of(graph.registers[static_cast<size_t>(slot.index)].writer));
      for (const Turn::Slot& slot : turn.outputs)
        for (const int reader : graph.registers[static_cast<size_t>(slot.index)].readers) look.insert(queue_of(reader));
      endings.pop();
    }
  }
  simulation.end_s = now_s;
  for (int queue = 0; queue < queues; ++queue) {
    if (counters.over(queue)) continue;
    for (const ActorCounters::Blocker& blocker : counters.blockers(queue)) {
      simulation.stuck.push_back(waits_for(graph, blocker));
      run.blockers.push_back(blocker);
    }
  }
  return run;
}

}  // namespace

Simulation simulate(const ActorGraph& graph, int64_t rounds) { return run_to_end(bounded(graph, rounds)).simulation; }

RegisterCounts find_register_counts(const ActorGraph& graph, int64_t rounds) {
  ActorGraph trial = bounded(graph, rounds);
  const auto turns = static_cast<int64_t>(run_to_end(trial).simulation.turns.size());
  int64_t reached = turns;
  RegisterCounts needed;
  while (true) {
    const SimulationRun run = run_to_end(trial);
    if (run.simulation.stuck.empty()) break;
    // Of the full registers, the one whose additional buffer allows the most turns.
    int best = -1;
    int64_t most = reached;
    std::vector<int> full;
    for (const ActorCounters::Blocker& blocker : run.blockers)
      if (blocker.full && std::find(full.begin(), full.end(), blocker.index) == full.end()) full.push_back(blocker.index);
    for (const int index : full) {
      ++trial.registers[static_cast<size_t>(index)].count;
      if (const auto now = static_cast<int64_t>(run_to_end(trial).simulation.turns.size()); now > most) most = now, best = index;
      --trial.registers[static_cast<size_t>(index)].count;
    }
    if (best < 0 && full.empty()) {
      needed.wrong = run.simulation.stuck.front();
      return needed;
    }
    if (best >= 0) {
      ++trial.registers[static_cast<size_t>(best)].count;
    } else {  // several registers must grow together
      for (const int index : full) ++trial.registers[static_cast<size_t>(index)].count;
    }
    reached = most;
  }
  // Take back every buffer that is not needed.
  for (size_t i = 0; i < trial.registers.size(); ++i) {
    while (trial.registers[i].count > graph.registers[i].count) {
      --trial.registers[i].count;
      if (run_to_end(trial).simulation.stuck.empty()) continue;
      ++trial.registers[i].count;
      break;
    }
    if (trial.registers[i].count > graph.registers[i].count) needed.counts.emplace_back(static_cast<int>(i), trial.registers[i].count);
  }
  return needed;
}

void check_no_deadlock(const ActorGraph& graph, int64_t rounds) {
  const Simulation simulation = simulate(graph, rounds);
  if (simulation.stuck.empty()) return;
  const RegisterCounts needed = find_register_counts(graph, rounds);
  if (!needed.wrong.empty()) fail_input("the actors deadlock, whatever the number of registers: {}", needed.wrong);
  std::vector<std::string> needs;
  for (const auto& [index, count] : needed.counts) {
    const RegisterSpec& one = graph.registers[static_cast<size_t>(index)];
    needs.push_back(fmt::format("{} needs {} registers and has {}", one.name, count, one.count));
  }
  fail_input("the actors deadlock: {} ({})", fmt::join(needs, ", "), simulation.stuck.front());
}

}  // namespace cairn::base
