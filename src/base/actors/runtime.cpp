// The protocol. One mutex guards the counters. A thread that runs a queue takes a turn under the lock (ActorCounters::begin), runs its body
// without the lock, and ends the turn under the lock (finish), which may let other queues act: they are notified. A body may return before
// its turn is done (a message in flight); the thread keeps such turns in its own list `in_flight` and goes on. When nothing can act, it
// first waits for a turn in flight that holds a buffer which the next turn needs, because waiting drives the message; otherwise it sleeps
// until another thread finishes a turn. An exception is stored once, wakes everybody, and is rethrown to all callers.
#include "base/actors/runtime.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::base {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(50);  // where both a turn in flight and another thread may be next to finish

}  // namespace

ActorRuntime::ActorRuntime(ActorGraph graph, std::vector<ActorBody> bodies, std::vector<int> here)
    : graph_(std::move(graph)), bodies_(std::move(bodies)), counters_(graph_) {
  CAIRN_CHECK(bodies_.size() == graph_.actors.size(), "{} bodies for {} actors", bodies_.size(), graph_.actors.size());
  for (const RegisterSpec& one : graph_.registers) buffers_.emplace_back(static_cast<size_t>(one.count));
  peak_held_.assign(graph_.registers.size(), 0);
  std::vector<int> elsewhere;
  for (int queue = 0; queue < static_cast<int>(graph_.queues.size()); ++queue)
    if (std::find(here.begin(), here.end(), queue) == here.end()) elsewhere.push_back(queue);
  single_thread_ = elsewhere.empty();  // before the first thread reads it
  for (const int queue : elsewhere) threads_.emplace_back([this, queue] { work(queue); });
}

ActorRuntime::~ActorRuntime() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ActorRuntime::fail(std::exception_ptr why) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(why);
  }
  changed_.notify_all();
}

// Takes a turn, if the queue has one now.
bool ActorRuntime::act(int queue, std::vector<InFlight>& in_flight) {
  std::optional<Turn> turn;
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || stop_) return false;
    turn = counters_.begin(queue);
    if (!turn) return false;
    for (const Turn::Slot& slot : turn->outputs)
      peak_held_[static_cast<size_t>(slot.index)] = std::max(peak_held_[static_cast<size_t>(slot.index)], counters_.held(slot.index));
  }
  TurnBuffers buffers(*turn, buffers_);
  std::optional<PendingTurn> pending = bodies_[static_cast<size_t>(turn->actor)](buffers);
  in_flight.push_back({std::move(*turn), pending ? std::move(*pending) : PendingTurn{}});
  if (!pending) finish_turn(in_flight, in_flight.size() - 1);
  return true;
}

void ActorRuntime::finish_turn(std::vector<InFlight>& in_flight, size_t i) {
  {
    const std::lock_guard lock(mutex_);
    counters_.finish(in_flight[i].turn);
    ++changes_;
  }
  in_flight.erase(in_flight.begin() + static_cast<std::ptrdiff_t>(i));
  if (!single_thread_) changed_.notify_all();
}

int64_t ActorRuntime::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

// Called when no queue of this thread could act after `seen` changes. False: none ever will.
bool ActorRuntime::wait_for_something(std::span<const int> queues, std::vector<InFlight>& in_flight, int64_t seen) {
  std::unique_lock lock(mutex_);
  if (failure_ || stop_) return false;
  if (in_flight.empty()) {
    if (std::all_of(queues.begin(), queues.end(), [&](int queue) { return counters_.over(queue); })) return false;
    CAIRN_CHECK(!single_thread_, "nothing can act: {} queues wait, and no other thread is at work", queues.size());
    changed_.wait(lock, [&] { return failure_ || stop_ || changes_ != seen; });
    return true;
  }
  // Wait for a turn in flight only if it holds a buffer that the next turn needs: others may depend on what this thread does later.
  for (const int queue : queues)
    for (const ActorCounters::Blocker& blocker : counters_.blockers(queue))
      for (size_t i = 0; i < in_flight.size(); ++i) {
        const auto& slots = blocker.full ? in_flight[i].turn.inputs : in_flight[i].turn.outputs;
        if (std::none_of(slots.begin(), slots.end(), [&](const Turn::Slot& slot) { return slot.index == blocker.index; })) continue;
        lock.unlock();
        in_flight[i].pending.wait();
        finish_turn(in_flight, i);
        return true;
      }
  const bool only_pending = std::all_of(queues.begin(), queues.end(), [&](int queue) { return counters_.over(queue); });
  if (only_pending) {
    lock.unlock();
    in_flight.front().pending.wait();
    finish_turn(in_flight, 0);
    return true;
  }
  changed_.wait_for(lock, kPollInterval, [&] { return failure_ || stop_ || changes_ != seen; });
  return true;
}

void ActorRuntime::run_here(std::span<const int> queues, const std::function<void()>& between) {
  std::vector<InFlight> in_flight;
  try {
    while (true) {
      const int64_t seen = changes();
      for (size_t i = 0; i < in_flight.size();) in_flight[i].pending.done() ? finish_turn(in_flight, i) : void(++i);
      bool acted = false;
      for (const int queue : queues) {
        acted = act(queue, in_flight);
        if (!acted) continue;
        if (between) between();
        break;  // a queue with priority may be able to act again
      }
      if (!acted && !wait_for_something(queues, in_flight, seen)) break;
    }
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

bool ActorRuntime::turn_here(int queue) {
  std::vector<InFlight> in_flight;
  for (int64_t seen = changes(); !act(queue, in_flight); seen = changes()) {
    if (wait_for_something(std::span(&queue, 1), in_flight, seen)) continue;
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    return false;
  }
  for (size_t i = in_flight.size(); i-- > 0;) {
    in_flight[i].pending.wait();
    finish_turn(in_flight, i);
  }
  return true;
}

void ActorRuntime::work(int queue) {
  try {
    run_here(std::span(&queue, 1));
  } catch (...) {  // stored by run_here, rethrown to the callers
  }
}

std::vector<int> ActorRuntime::peak_held() const {
  const std::lock_guard lock(mutex_);
  return peak_held_;
}

}  // namespace cairn::base
