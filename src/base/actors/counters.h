#pragma once
#include <deque>
#include <optional>
#include <vector>

#include "base/actors/graph.h"

namespace cairn::base {

// A turn under way: which buffer of each register that the actor reads or writes it has. Registers come in the order of the graph.
struct Turn {
  struct Slot {
    int index = 0;   // of the register
    int buffer = 0;  // of it
  };
  int actor = 0;
  int64_t tag = 0;
  std::vector<Slot> inputs = {};
  std::vector<Slot> outputs = {};
};

// The counters of a graph of actors: who may act now, which buffers are free. The one set of rules by which threads run actors
// (actor_runtime.h) and virtual time plays them (token_game.h). Not for several threads at once.
class ActorCounters {
 public:
  explicit ActorCounters(const ActorGraph& graph);  // borrowed

  // Takes the next turn of a queue, with its buffers; nothing: it cannot act now, or it is over.
  std::optional<Turn> begin(int queue);
  // Hands on what the turn wrote, gives back what it read.
  void finish(const Turn& turn);
  bool over(int queue) const;  // no turn will ever come

  // What a queue waits for: an input of the actor that is not there, or an output that has no free buffer.
  struct Blocker {
    int actor = 0;
    int64_t tag = 0;
    int index = 0;  // of the register
    bool full = false;
  };
  std::vector<Blocker> blockers(int queue) const;

  int held(int index) const { return held_[static_cast<size_t>(index)]; }  // buffers of a register that are not free

 private:
  struct FilledBuffer {
    int64_t tag = 0;
    int buffer = 0;
  };
  std::optional<int64_t> tag_of_next(int actor) const;
  std::vector<Blocker> blockers_of(int actor, int64_t tag) const;
  bool ended(int actor) const;
  size_t place(int index, int actor) const;  // of a reader among those of a register
  const std::deque<FilledBuffer>& waiting(int index, int actor) const { return waiting_[static_cast<size_t>(index)][place(index, actor)]; }

  const ActorGraph& graph_;
  std::vector<std::vector<int>> reads_, writes_, of_queue_;     // registers by actor; actors by queue
  std::vector<std::vector<std::deque<FilledBuffer>>> waiting_;  // by register and reader: what it has yet to read
  std::vector<std::vector<int>> references_;                    // by register and buffer: readers that are not done with it
  std::vector<std::vector<int>> free_;                          // by register: buffers
  std::vector<int> held_;
  std::vector<int64_t> begun_, done_;  // turns by actor
  std::vector<size_t> position_;       // by queue, in its order
};

}  // namespace cairn::base
