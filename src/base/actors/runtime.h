#pragma once
#include <any>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/actors/counters.h"
#include "base/actors/graph.h"

namespace cairn::base {

// A turn that goes on after its body has returned (a message in flight). Its inputs stay held until it is done.
struct PendingTurn {
  std::function<bool()> done;  // must not block
  std::function<void()> wait;
};

// What a body sees of its turn: its tag, and the buffers of its inputs and outputs by position. An output buffer still holds what was last
// written to it, so that a body can reuse the memory.
class TurnBuffers {
 public:
  TurnBuffers(const Turn& turn, std::vector<std::vector<std::any>>& buffers) : turn_(turn), buffers_(buffers) {}
  int64_t tag() const { return turn_.tag; }
  std::any& input(size_t i) { return at(turn_.inputs[i]); }
  std::any& output(size_t i) { return at(turn_.outputs[i]); }

 private:
  std::any& at(const Turn::Slot& slot) { return buffers_[static_cast<size_t>(slot.index)][static_cast<size_t>(slot.buffer)]; }
  const Turn& turn_;
  std::vector<std::vector<std::any>>& buffers_;
};

// What an actor does in a turn. Returns a PendingTurn where the turn ends later.
using ActorBody = std::function<std::optional<PendingTurn>(TurnBuffers& buffers)>;

// Runs a graph of actors. A queue runs on a thread of its own, or on the thread that calls run_here or turn_here for it. If a body throws,
// all queues stop and the exception is rethrown to every caller; nothing is left waiting.
class ActorRuntime {
 public:
  // `bodies`: by actor. Starts a thread for each queue that is not in `here`.
  ActorRuntime(ActorGraph graph, std::vector<ActorBody> bodies, std::vector<int> here);
  ~ActorRuntime();  // waits for the turns that its threads are in, then joins them
  ActorRuntime(const ActorRuntime&) = delete;
  ActorRuntime& operator=(const ActorRuntime&) = delete;

  // Runs these queues on the calling thread until they are over; the first listed has priority. `between` is called after every turn.
  void run_here(std::span<const int> queues, const std::function<void()>& between = {});
  // Runs one turn of this queue on the calling thread and waits until it is done. False: the queue is over.
  bool turn_here(int queue);

  std::vector<int> peak_held() const;  // by register: the most buffers that were in use at once, so far

 private:
  struct InFlight {
    Turn turn;
    PendingTurn pending;
  };
  bool act(int queue, std::vector<InFlight>& in_flight);
  void finish_turn(std::vector<InFlight>& in_flight, size_t i);
  int64_t changes() const;
  bool wait_for_something(std::span<const int> queues, std::vector<InFlight>& in_flight, int64_t seen);
  void fail(std::exception_ptr why);
  void work(int queue);

  ActorGraph graph_;
  std::vector<ActorBody> bodies_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  ActorCounters counters_;
  std::vector<int> peak_held_;
  std::vector<std::vector<std::any>> buffers_;  // by register
  std::exception_ptr failure_;
  int64_t changes_ = 0;  // finished turns: tells a waiter whether anything is new
  bool stop_ = false;
  bool single_thread_ = true;  // no queue has a thread of its own
  std::vector<std::thread> threads_;
};

}  // namespace cairn::base
