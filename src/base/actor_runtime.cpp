#include "base/actor_runtime.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::base {
namespace {

constexpr auto kLookAgain = std::chrono::microseconds(50);  // where both a flight and another thread may bring news

}  // namespace

ActorRuntime::ActorRuntime(ActorGraph graph, std::vector<Body> bodies, std::vector<int> here)
    : graph_(std::move(graph)), bodies_(std::move(bodies)), tokens_(graph_) {
  CAIRN_CHECK(bodies_.size() == graph_.actors.size(), "{} bodies for {} actors", bodies_.size(), graph_.actors.size());
  for (const RegisterSpec& one : graph_.registers) buffers_.emplace_back(static_cast<size_t>(one.count));
  held_most_.assign(graph_.registers.size(), 0);
  std::vector<int> elsewhere;
  for (int queue = 0; queue < static_cast<int>(graph_.queues.size()); ++queue)
    if (std::find(here.begin(), here.end(), queue) == here.end()) elsewhere.push_back(queue);
  alone_ = elsewhere.empty();  // before the first thread reads it
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
bool ActorRuntime::act(int queue, std::vector<Aloft>& aloft) {
  std::optional<Turn> turn;
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || stop_) return false;
    turn = tokens_.begin(queue);
    if (!turn) return false;
    for (const Turn::Slot& slot : turn->outputs)
      held_most_[static_cast<size_t>(slot.index)] = std::max(held_most_[static_cast<size_t>(slot.index)], tokens_.held(slot.index));
  }
  Desk desk(*turn, buffers_);
  std::optional<Flight> flight = bodies_[static_cast<size_t>(turn->actor)](desk);
  aloft.push_back({std::move(*turn), flight ? std::move(*flight) : Flight{}});
  if (!flight) land(aloft, aloft.size() - 1);
  return true;
}

void ActorRuntime::land(std::vector<Aloft>& aloft, size_t i) {
  {
    const std::lock_guard lock(mutex_);
    tokens_.finish(aloft[i].turn);
    ++changes_;
  }
  aloft.erase(aloft.begin() + static_cast<std::ptrdiff_t>(i));
  if (!alone_) changed_.notify_all();
}

int64_t ActorRuntime::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

// Nothing could act on this thread after it had seen so many changes. False: nor will anything, ever.
bool ActorRuntime::wait_for_something(std::span<const int> queues, std::vector<Aloft>& aloft, int64_t seen) {
  std::unique_lock lock(mutex_);
  if (failure_ || stop_) return false;
  if (aloft.empty()) {
    if (std::all_of(queues.begin(), queues.end(), [&](int queue) { return tokens_.over(queue); })) return false;
    CAIRN_CHECK(!alone_, "nothing can act: {} queues wait, and no other thread is at work", queues.size());
    changed_.wait(lock, [&] { return failure_ || stop_ || changes_ != seen; });
    return true;
  }
  // A flight that holds what comes next has to land first, and waiting for it lets messages move. Others may depend on what this thread
  // does later.
  for (const int queue : queues)
    for (const Tokens::Lack& lack : tokens_.lacks(queue))
      for (size_t i = 0; i < aloft.size(); ++i) {
        const auto& slots = lack.full ? aloft[i].turn.inputs : aloft[i].turn.outputs;
        if (std::none_of(slots.begin(), slots.end(), [&](const Turn::Slot& slot) { return slot.index == lack.index; })) continue;
        lock.unlock();
        aloft[i].flight.wait();
        land(aloft, i);
        return true;
      }
  const bool only_flights = std::all_of(queues.begin(), queues.end(), [&](int queue) { return tokens_.over(queue); });
  if (only_flights) {
    lock.unlock();
    aloft.front().flight.wait();
    land(aloft, 0);
    return true;
  }
  changed_.wait_for(lock, kLookAgain, [&] { return failure_ || stop_ || changes_ != seen; });
  return true;
}

void ActorRuntime::run_here(std::span<const int> queues, const std::function<void()>& between) {
  std::vector<Aloft> aloft;
  try {
    while (true) {
      const int64_t seen = changes();
      for (size_t i = 0; i < aloft.size();) aloft[i].flight.landed() ? land(aloft, i) : void(++i);
      bool acted = false;
      for (const int queue : queues) {
        acted = act(queue, aloft);
        if (!acted) continue;
        if (between) between();
        break;  // what comes first may be able to act again
      }
      if (!acted && !wait_for_something(queues, aloft, seen)) break;
    }
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

bool ActorRuntime::turn_here(int queue) {
  std::vector<Aloft> aloft;
  for (int64_t seen = changes(); !act(queue, aloft); seen = changes()) {
    if (wait_for_something(std::span(&queue, 1), aloft, seen)) continue;
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    return false;
  }
  for (size_t i = aloft.size(); i-- > 0;) {
    aloft[i].flight.wait();
    land(aloft, i);
  }
  return true;
}

void ActorRuntime::work(int queue) {
  try {
    run_here(std::span(&queue, 1));
  } catch (...) {  // kept: those who call are told
  }
}

std::vector<int> ActorRuntime::held_most() const {
  const std::lock_guard lock(mutex_);
  return held_most_;
}

}  // namespace cairn::base
