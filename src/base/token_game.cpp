#include "base/token_game.h"

#include <algorithm>
#include <queue>
#include <set>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/tokens.h"

namespace cairn::base {
namespace {

struct Ending {
  double end_s = 0;
  int64_t number = 0;  // of the turn: what began first ends first, at equal times
  int queue = 0;
  Turn turn = {};
  bool operator>(const Ending& other) const { return std::pair(end_s, number) > std::pair(other.end_s, other.number); }
};

// Sources that go on for ever would never let a game end.
ActorGraph bounded(ActorGraph graph, int64_t rounds) {
  std::vector<bool> fed(graph.actors.size());
  for (const RegisterSpec& one : graph.registers)
    for (const int reader : one.readers) fed[static_cast<size_t>(reader)] = true;
  for (size_t i = 0; i < graph.actors.size(); ++i)
    if (!fed[i] && graph.actors[i].turns < 0 && !graph.queues[static_cast<size_t>(graph.actors[i].queue)].ordered)
      graph.actors[i].turns = rounds;
  return graph;
}

std::string waits_for(const ActorGraph& graph, const Tokens::Lack& lack) {
  const RegisterSpec& one = graph.registers[static_cast<size_t>(lack.index)];
  const std::string& actor = graph.actors[static_cast<size_t>(lack.actor)].name;
  return lack.full ? fmt::format("{} (turn {}) waits for one of the {} registers of {}", actor, lack.tag, one.count, one.name)
                   : fmt::format("{} (turn {}) waits for {}", actor, lack.tag, one.name);
}

struct Played {
  Game game;
  std::vector<Tokens::Lack> lacks;
};

Played play_out(const ActorGraph& graph) {
  Tokens tokens(graph);
  Played played;
  Game& game = played.game;
  game.held_most.assign(graph.registers.size(), 0);
  const int queues = static_cast<int>(graph.queues.size());
  std::vector<bool> busy(graph.queues.size());
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> endings;
  double now_s = 0;
  int64_t number = 0;
  // Queues that may be able to act: at first all, then those that something changed for.
  std::set<int> look;
  for (int queue = 0; queue < queues; ++queue) look.insert(queue);
  const auto queue_of = [&](int actor) { return graph.actors[static_cast<size_t>(actor)].queue; };
  while (true) {
    for (const int queue : std::exchange(look, {})) {
      if (busy[static_cast<size_t>(queue)]) continue;
      const auto turn = tokens.begin(queue);
      if (!turn) continue;
      busy[static_cast<size_t>(queue)] = true;
      for (const Turn::Slot& slot : turn->outputs)
        game.held_most[static_cast<size_t>(slot.index)] =
            std::max(game.held_most[static_cast<size_t>(slot.index)], tokens.held(slot.index));
      const double end_s = now_s + graph.actors[static_cast<size_t>(turn->actor)].seconds;
      game.turns.push_back({{turn->actor, turn->tag}, now_s, end_s});
      endings.push({end_s, number++, queue, *turn});
    }
    if (endings.empty()) break;
    // All that ends now, before anybody chooses what to do next.
    now_s = endings.top().end_s;
    while (!endings.empty() && endings.top().end_s == now_s) {
      const Turn& turn = endings.top().turn;
      tokens.finish(turn);
      busy[static_cast<size_t>(endings.top().queue)] = false;
      look.insert(endings.top().queue);
      for (const Turn::Slot& slot : turn.inputs) look.insert(queue_of(graph.registers[static_cast<size_t>(slot.index)].writer));
      for (const Turn::Slot& slot : turn.outputs)
        for (const int reader : graph.registers[static_cast<size_t>(slot.index)].readers) look.insert(queue_of(reader));
      endings.pop();
    }
  }
  game.end_s = now_s;
  for (int queue = 0; queue < queues; ++queue) {
    if (tokens.over(queue)) continue;
    for (const Tokens::Lack& lack : tokens.lacks(queue)) {
      game.stuck.push_back(waits_for(graph, lack));
      played.lacks.push_back(lack);
    }
  }
  return played;
}

}  // namespace

Game play(const ActorGraph& graph, int64_t rounds) { return play_out(bounded(graph, rounds)).game; }

Raised raise_until_it_runs(const ActorGraph& graph, int64_t rounds) {
  ActorGraph trial = bounded(graph, rounds);
  const auto turns = static_cast<int64_t>(play_out(trial).game.turns.size());
  int64_t reached = turns;
  Raised raised;
  while (true) {
    const Played played = play_out(trial);
    if (played.game.stuck.empty()) break;
    // Of the full registers, the one that lets the most turns happen.
    int best = -1;
    int64_t most = reached;
    std::vector<int> full;
    for (const Tokens::Lack& lack : played.lacks)
      if (lack.full && std::find(full.begin(), full.end(), lack.index) == full.end()) full.push_back(lack.index);
    for (const int index : full) {
      ++trial.registers[static_cast<size_t>(index)].count;
      if (const auto now = static_cast<int64_t>(play_out(trial).game.turns.size()); now > most) most = now, best = index;
      --trial.registers[static_cast<size_t>(index)].count;
    }
    if (best < 0 && full.empty()) {
      raised.wrong = played.game.stuck.front();
      return raised;
    }
    if (best >= 0) {
      ++trial.registers[static_cast<size_t>(best)].count;
    } else {  // several must give way at once
      for (const int index : full) ++trial.registers[static_cast<size_t>(index)].count;
    }
    reached = most;
  }
  // Not one more than it takes.
  for (size_t i = 0; i < trial.registers.size(); ++i) {
    while (trial.registers[i].count > graph.registers[i].count) {
      --trial.registers[i].count;
      if (play_out(trial).game.stuck.empty()) continue;
      ++trial.registers[i].count;
      break;
    }
    if (trial.registers[i].count > graph.registers[i].count) raised.counts.emplace_back(static_cast<int>(i), trial.registers[i].count);
  }
  return raised;
}

void check_it_runs(const ActorGraph& graph, int64_t rounds) {
  const Game game = play(graph, rounds);
  if (game.stuck.empty()) return;
  const Raised raised = raise_until_it_runs(graph, rounds);
  if (!raised.wrong.empty()) fail_input("the actors would come to a standstill, whatever the number of registers: {}", raised.wrong);
  std::vector<std::string> needs;
  for (const auto& [index, count] : raised.counts) {
    const RegisterSpec& one = graph.registers[static_cast<size_t>(index)];
    needs.push_back(fmt::format("{} needs {} registers and has {}", one.name, count, one.count));
  }
  fail_input("the actors would come to a standstill: {} ({})", fmt::join(needs, ", "), game.stuck.front());
}

}  // namespace cairn::base
