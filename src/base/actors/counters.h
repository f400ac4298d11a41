#pragma once
#include <deque>
#include <optional>
#include <vector>

#include "base/actors/graph.h"

namespace cairn::base {

// A turn in progress, and the buffer that it has of each register that its actor reads or writes, in the order of the graph's registers.
struct Turn {
  struct Slot {
    int index = 0;   // of the register
    int buffer = 0;  // of that register
  };
  int actor = 0;
  int64_t tag = 0;
  std::vector<Slot> inputs = {};
  std::vector<Slot> outputs = {};
};

// The state of an actor graph: which buffers are free, filled or in use, and hence who may act. Threads (runtime.h) and virtual time
// (simulation.h) both follow it. Not thread-safe: the caller locks.
class ActorCounters {
 public:
  explicit ActorCounters(const ActorGraph& graph);  // borrowed

  // Begins the next turn of a queue and takes its buffers. Nothing: the queue cannot act now, or is over.
  std::optional<Turn> begin(int queue);
  // Ends a turn: its outputs become visible to their readers, its inputs are released.
  void finish(const Turn& turn);
  bool over(int queue) const;  // the queue will never have another turn

  // What a queue waits for: an input of an actor that is not filled, or an output that has no free buffer (`full`).
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
