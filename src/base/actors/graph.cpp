#include "base/actors/graph.h"

#include <algorithm>

#include "base/check.h"

namespace cairn::base {
namespace {

// Nothing on a cycle of inputs could ever act first.
void refuse_cycles(const ActorGraph& graph) {
  std::vector<int> missing(graph.actors.size(), 0);
  for (const RegisterSpec& one : graph.registers)
    for (const int reader : one.readers) ++missing[static_cast<size_t>(reader)];
  std::vector<int> ready;
  for (size_t i = 0; i < missing.size(); ++i)
    if (missing[i] == 0) ready.push_back(static_cast<int>(i));
  for (size_t at = 0; at < ready.size(); ++at)
    for (const RegisterSpec& one : graph.registers)
      if (one.writer == ready[at])
        for (const int reader : one.readers)
          if (--missing[static_cast<size_t>(reader)] == 0) ready.push_back(reader);
  if (ready.size() == graph.actors.size()) return;
  const auto stuck = std::find_if(missing.begin(), missing.end(), [](int count) { return count > 0; });
  fail_input("actor {} waits, by way of others, for itself", graph.actors[static_cast<size_t>(stuck - missing.begin())].name);
}

}  // namespace

int ActorGraph::add_queue(QueueSpec queue) {
  queues.push_back(std::move(queue));
  return static_cast<int>(queues.size()) - 1;
}

int ActorGraph::add_actor(ActorSpec actor) {
  actors.push_back(std::move(actor));
  return static_cast<int>(actors.size()) - 1;
}

int ActorGraph::add_register(RegisterSpec spec) {
  registers.push_back(std::move(spec));
  return static_cast<int>(registers.size()) - 1;
}

void check(const ActorGraph& graph) {
  const auto known = [](int index, size_t count) { return index >= 0 && index < static_cast<int>(count); };
  for (const ActorSpec& actor : graph.actors)
    CAIRN_CHECK(known(actor.queue, graph.queues.size()), "actor {} is on queue {} of {}", actor.name, actor.queue, graph.queues.size());
  for (const RegisterSpec& one : graph.registers) {
    CAIRN_CHECK(known(one.writer, graph.actors.size()), "{} is written by actor {} of {}", one.name, one.writer, graph.actors.size());
    for (const int reader : one.readers)
      CAIRN_CHECK(known(reader, graph.actors.size()), "{} is read by actor {} of {}", one.name, reader, graph.actors.size());
    if (one.count < 1) fail_input("{}: {} registers; nothing can be handed on without one: use 1 or more", one.name, one.count);
    if (one.bytes < 0) fail_input("{}: a register of {} bytes", one.name, one.bytes);
  }
  for (size_t queue = 0; queue < graph.queues.size(); ++queue)
    for (const ActorTurn& entry : graph.queues[queue].order)
      CAIRN_CHECK(
          known(entry.actor, graph.actors.size()) && graph.actors[static_cast<size_t>(entry.actor)].queue == static_cast<int>(queue),
          "the order of queue {} names actor {}", graph.queues[queue].name, entry.actor);
  refuse_cycles(graph);
}

int64_t register_bytes(const ActorGraph& graph) {
  int64_t bytes = 0;
  for (const RegisterSpec& one : graph.registers) bytes += one.count * one.bytes;
  return bytes;
}

}  // namespace cairn::base
