// Work as actors that hand each other buffers: what there is to do, in what order, and how many buffers there are in between.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::base {

// Something that is done again and again. It acts when each of its inputs holds something and each of its outputs has a free buffer: that
// one rule is dependency, memory limit, flow control and overlap.
struct ActorSpec {
  std::string name;
  int queue = 0;
  double seconds = 0;  // that a turn takes, where time is virtual
  int64_t turns = -1;  // that it has; -1: as many as its inputs bring
};

// An output of an actor: so many buffers, each free, being written, or held until its last reader is done with it.
struct RegisterSpec {
  std::string name;
  int writer = 0;
  std::vector<int> readers = {};  // actors
  int count = 2;                  // 1: writer and readers take turns; 2: they overlap
  int64_t bytes = 0;              // of one buffer; 0: only order is handed on
};

// One turn of an actor. The tag says which: what one actor writes in turn 7 its readers read in turn 7.
struct ActorTurn {
  int actor = 0;
  int64_t tag = 0;
  bool operator==(const ActorTurn&) const = default;
};

// What does one thing at a time: a compute stream, a link, a disk.
struct QueueSpec {
  std::string name;
  bool ordered = false;  // does `order`, whatever is ready; else who can act does, the first listed first
  std::vector<ActorTurn> order = {};
};

struct ActorGraph {
  std::vector<ActorSpec> actors;
  std::vector<RegisterSpec> registers;
  std::vector<QueueSpec> queues;

  int add_queue(QueueSpec queue);
  int add_actor(ActorSpec actor);
  int add_register(RegisterSpec spec);
};

// Refuses what names actors or queues that are not there, and registers without a buffer.
void check(const ActorGraph& graph);

// What all buffers take together: known before anything runs.
int64_t register_bytes(const ActorGraph& graph);

}  // namespace cairn::base
