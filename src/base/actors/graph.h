// Work as actors that pass buffers: what there is to do, in what order, and how many buffers there are in between.
//
// The model is OneFlow's (arXiv:2110.15032). An actor has inputs and outputs, each a register: a fixed number of buffers that one actor
// writes and others read. An actor may take a turn when every input holds a filled buffer and every output has a free one. This one rule
// gives dependencies, a memory limit, flow control (a slow reader holds back its writer) and overlap (two buffers let writer and reader
// work at once). A queue is something that does one turn at a time: a compute stream, a link, a disk.
//
// The same graph runs on threads (runtime.h) and in virtual time (simulation.h), by the same counters (counters.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::base {

struct ActorSpec {
  std::string name;
  int queue = 0;
  double seconds = 0;  // what a turn takes in virtual time
  int64_t turns = -1;  // how many turns it has; -1: as many as its inputs bring
};

// An output of an actor. Each of its buffers is free, being written, or held until its last reader is done with it.
struct RegisterSpec {
  std::string name;
  int writer = 0;                 // actor
  std::vector<int> readers = {};  // actors
  int count = 2;                  // buffers; 1: writer and readers alternate, 2: they overlap
  int64_t bytes = 0;              // of one buffer; 0: only order is passed on
};

// One turn of an actor. What one actor writes in the turn with tag 7 its readers read in their turn with tag 7.
struct ActorTurn {
  int actor = 0;
  int64_t tag = 0;
  bool operator==(const ActorTurn&) const = default;
};

struct QueueSpec {
  std::string name;
  bool ordered = false;               // true: does `order`, one after the other; false: any actor that may act, the first listed first
  std::vector<ActorTurn> order = {};  // of an ordered queue
};

// Actors, registers and queues name each other by index.
struct ActorGraph {
  std::vector<ActorSpec> actors;
  std::vector<RegisterSpec> registers;
  std::vector<QueueSpec> queues;

  // Each returns the index of what it added.
  int add_queue(QueueSpec queue);
  int add_actor(ActorSpec actor);
  int add_register(RegisterSpec spec);
};

// Throws where an index is out of range, a register has no buffer, or an actor waits for itself by way of others.
void check(const ActorGraph& graph);

// Bytes of all buffers together: the memory that the graph needs, known before anything runs.
int64_t register_bytes(const ActorGraph& graph);

}  // namespace cairn::base
