#include "base/actors/counters.h"

#include <algorithm>

#include "base/check.h"

namespace cairn::base {

ActorCounters::ActorCounters(const ActorGraph& graph) : graph_(graph) {
  check(graph);
  reads_.resize(graph.actors.size());
  writes_.resize(graph.actors.size());
  of_queue_.resize(graph.queues.size());
  for (size_t i = 0; i < graph.actors.size(); ++i) of_queue_[static_cast<size_t>(graph.actors[i].queue)].push_back(static_cast<int>(i));
  for (size_t i = 0; i < graph.registers.size(); ++i) {
    const RegisterSpec& one = graph.registers[i];
    writes_[static_cast<size_t>(one.writer)].push_back(static_cast<int>(i));
    for (const int reader : one.readers) reads_[static_cast<size_t>(reader)].push_back(static_cast<int>(i));
    waiting_.emplace_back(one.readers.size());
    references_.emplace_back(static_cast<size_t>(one.count), 0);
    std::vector<int>& free = free_.emplace_back();
    for (int buffer = one.count - 1; buffer >= 0; --buffer) free.push_back(buffer);  // taken from the back: 0 first
  }
  held_.assign(graph.registers.size(), 0);
  begun_.assign(graph.actors.size(), 0);
  done_.assign(graph.actors.size(), 0);
  position_.assign(graph.queues.size(), 0);
}

size_t ActorCounters::place(int index, int actor) const {
  const std::vector<int>& readers = graph_.registers[static_cast<size_t>(index)].readers;
  return static_cast<size_t>(std::find(readers.begin(), readers.end(), actor) - readers.begin());
}

// The tag of the next turn of an actor on an unordered queue: the oldest that its first input holds, or how many turns it has begun.
std::optional<int64_t> ActorCounters::tag_of_next(int actor) const {
  const auto at = static_cast<size_t>(actor);
  if (graph_.actors[at].turns >= 0 && begun_[at] >= graph_.actors[at].turns) return std::nullopt;
  if (reads_[at].empty()) return begun_[at];
  const std::deque<FilledBuffer>& first = waiting(reads_[at].front(), actor);
  return first.empty() ? begun_[at] : first.front().tag;
}

std::vector<ActorCounters::Blocker> ActorCounters::blockers_of(int actor, int64_t tag) const {
  std::vector<Blocker> blockers;
  for (const int index : reads_[static_cast<size_t>(actor)]) {
    const std::deque<FilledBuffer>& full = waiting(index, actor);
    if (std::none_of(full.begin(), full.end(), [&](const FilledBuffer& one) { return one.tag == tag; }))
      blockers.push_back({actor, tag, index, false});
  }
  for (const int index : writes_[static_cast<size_t>(actor)])
    if (free_[static_cast<size_t>(index)].empty()) blockers.push_back({actor, tag, index, true});
  return blockers;
}

std::vector<ActorCounters::Blocker> ActorCounters::blockers(int queue) const {
  const QueueSpec& spec = graph_.queues[static_cast<size_t>(queue)];
  const size_t position = position_[static_cast<size_t>(queue)];
  if (spec.ordered)
    return position < spec.order.size() ? blockers_of(spec.order[position].actor, spec.order[position].tag) : std::vector<Blocker>{};
  std::vector<Blocker> all;
  for (const int actor : of_queue_[static_cast<size_t>(queue)])
    if (const auto tag = tag_of_next(actor); tag && !ended(actor))
      for (const Blocker& blocker : blockers_of(actor, *tag)) all.push_back(blocker);
  return all;
}

std::optional<Turn> ActorCounters::begin(int queue) {
  const QueueSpec& spec = graph_.queues[static_cast<size_t>(queue)];
  size_t& position = position_[static_cast<size_t>(queue)];
  std::optional<ActorTurn> chosen;
  if (spec.ordered) {
    if (position < spec.order.size() && blockers_of(spec.order[position].actor, spec.order[position].tag).empty())
      chosen = spec.order[position++];
  } else {
    for (const int actor : of_queue_[static_cast<size_t>(queue)]) {
      const auto tag = tag_of_next(actor);
      if (!tag || ended(actor) || !blockers_of(actor, *tag).empty()) continue;
      chosen = ActorTurn{actor, *tag};
      break;
    }
  }
  if (!chosen) return std::nullopt;
  Turn turn{.actor = chosen->actor, .tag = chosen->tag};
  const auto at = static_cast<size_t>(turn.actor);
  for (const int index : reads_[at]) {
    std::deque<FilledBuffer>& full = waiting_[static_cast<size_t>(index)][place(index, turn.actor)];
    const auto found = std::find_if(full.begin(), full.end(), [&](const FilledBuffer& one) { return one.tag == turn.tag; });
    turn.inputs.push_back({index, found->buffer});
    full.erase(found);
  }
  for (const int index : writes_[at]) {
    std::vector<int>& free = free_[static_cast<size_t>(index)];
    turn.outputs.push_back({index, free.back()});
    free.pop_back();
    ++held_[static_cast<size_t>(index)];
  }
  ++begun_[at];
  return turn;
}

void ActorCounters::finish(const Turn& turn) {
  const auto release = [&](const Turn::Slot& slot) {
    free_[static_cast<size_t>(slot.index)].push_back(slot.buffer);
    --held_[static_cast<size_t>(slot.index)];
  };
  for (const Turn::Slot& slot : turn.outputs) {
    auto& readers = waiting_[static_cast<size_t>(slot.index)];
    for (auto& full : readers) full.push_back({turn.tag, slot.buffer});
    references_[static_cast<size_t>(slot.index)][static_cast<size_t>(slot.buffer)] = static_cast<int>(readers.size());
    if (readers.empty()) release(slot);
  }
  for (const Turn::Slot& slot : turn.inputs)
    if (--references_[static_cast<size_t>(slot.index)][static_cast<size_t>(slot.buffer)] == 0) release(slot);
  ++done_[static_cast<size_t>(turn.actor)];
}

bool ActorCounters::ended(int actor) const {
  const auto at = static_cast<size_t>(actor);
  if (const int64_t turns = graph_.actors[at].turns; turns >= 0) return begun_[at] >= turns;
  const QueueSpec& spec = graph_.queues[static_cast<size_t>(graph_.actors[at].queue)];
  if (spec.ordered) return position_[static_cast<size_t>(graph_.actors[at].queue)] >= spec.order.size();
  return std::any_of(reads_[at].begin(), reads_[at].end(), [&](int index) {
    const int writer = graph_.registers[static_cast<size_t>(index)].writer;
    return waiting(index, actor).empty() && ended(writer) && done_[static_cast<size_t>(writer)] == begun_[static_cast<size_t>(writer)];
  });
}

bool ActorCounters::over(int queue) const {
  const QueueSpec& spec = graph_.queues[static_cast<size_t>(queue)];
  if (spec.ordered) return position_[static_cast<size_t>(queue)] >= spec.order.size();
  const std::vector<int>& actors = of_queue_[static_cast<size_t>(queue)];
  return std::all_of(actors.begin(), actors.end(), [&](int actor) { return ended(actor); });
}

}  // namespace cairn::base
