// A schedule without a rule of its own (after OneFlow's actors, arXiv:2110.15032): stages are actors, a backward goes before a forward, and
// the registers of a stage bound how many micro-batches it keeps for backward. The actors are simulated in virtual time; the result is a
// list that every rank then follows, because ranks of one stage (tp, cp) must all decide the same.
#include <algorithm>

#include "base/actors/simulation.h"
#include "base/check.h"
#include "parallel/schedule/generators.h"

namespace cairn::parallel {

// Stage s of n keeps n-s micro-batches, as many as it can use: with one stage per rank the result is 1F1B.
RankActions flow_actions(const PipelineSize& size) {
  const int stages = size.ranks * size.stages_per_rank;
  base::ActorGraph graph;
  for (int rank = 0; rank < size.ranks; ++rank) graph.add_queue({.name = "rank"});
  const auto rank_of = [&](int stage) { return stage % size.ranks; };
  std::vector<Action> what;
  std::vector<int> forward(static_cast<size_t>(stages)), backward(static_cast<size_t>(stages));
  for (int stage = stages - 1; stage >= 0; --stage) {  // the first listed has priority: late stages before early ones
    backward[static_cast<size_t>(stage)] = graph.add_actor({.name = "backward", .queue = rank_of(stage), .seconds = 2});
    what.push_back({ActionKind::backward, stage, 0});
  }
  for (int stage = stages - 1; stage >= 0; --stage) {
    forward[static_cast<size_t>(stage)] =
        graph.add_actor({.name = "forward", .queue = rank_of(stage), .seconds = 1, .turns = stage == 0 ? size.micro_batches : -1});
    what.push_back({ActionKind::forward, stage, 0});
  }
  const auto link = [&](int from, int to) {
    const int mover = graph.add_actor({.name = "move", .queue = graph.add_queue({.name = "link"})});
    what.push_back({});
    graph.add_register({.name = "source", .writer = from, .readers = {mover}, .count = 1});
    graph.add_register({.name = "destination", .writer = mover, .readers = {to}, .count = 1});
  };
  for (int stage = 0; stage < stages; ++stage) {
    const auto at = static_cast<size_t>(stage);
    graph.add_register({.name = "kept", .writer = forward[at], .readers = {backward[at]}, .count = stages - stage});
    if (stage + 1 == stages) continue;
    link(forward[at], forward[at + 1]);
    link(backward[at + 1], backward[at]);
  }
  const base::Simulation simulation = base::simulate(graph);
  CAIRN_CHECK(simulation.stuck.empty(), "{}", simulation.stuck.front());
  RankActions all(static_cast<size_t>(size.ranks));
  for (const base::TimedTurn& timed : simulation.turns) {
    if (graph.actors[static_cast<size_t>(timed.turn.actor)].queue >= size.ranks) continue;  // a link
    Action action = what[static_cast<size_t>(timed.turn.actor)];
    action.micro_batch = static_cast<int>(timed.turn.tag);
    all[static_cast<size_t>(rank_of(action.stage))].push_back(action);
  }
  return all;
}

}  // namespace cairn::parallel
