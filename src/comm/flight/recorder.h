#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "comm/completion.h"
#include "comm/envelope.h"
#include "comm/flight/memory.h"
#include "comm/label.h"

namespace cairn::comm {

std::shared_ptr<FlightMemory> make_flight_memory();  // private memory; pages exist once they are touched

// Nanoseconds of the machine's monotonic clock: the same for all its processes.
std::chrono::nanoseconds machine_time();

// Records what a rank does with its groups, always, in memory that others may read (flight/log.h): operations, messages per peer, steps,
// and what the rank is doing. The rank's thread writes, one call at a time. A call takes well below a microsecond and never blocks.
class FlightRecorder {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  // `epoch`: what to add to `clock` for machine_time(); 0 where time is virtual.
  FlightRecorder(std::shared_ptr<FlightMemory> memory, const base::Clock& clock, Nanoseconds epoch, int rank, int size);

  const std::shared_ptr<FlightMemory>& memory() const { return memory_; }

  void add_group(uint64_t id, std::string_view name, const std::vector<int>& ranks);
  void name_group(const std::vector<int>& ranks, std::string_view name);  // of groups with these ranks that have no name yet
  void set_host(std::string_view host);
  void set_run(std::string_view directory);
  void set_role(uint64_t role) { put(memory_->role, role); }
  // Messages to this peer go through shared memory: how long they take says nothing about a network.
  void set_in_memory(int peer);

  // Operations. begin_operation returns the number by which the other calls know it.
  uint64_t begin_operation(const Envelope& envelope, Purpose purpose, int64_t bytes, int peer, bool sends, Nanoseconds now);
  void end_operation(uint64_t operation, bool failed);
  void begin_wait(uint64_t operation);
  void still_waiting();                            // called now and then during a long wait
  void end_wait(uint64_t operation, bool failed);  // after a failure the rank stays marked as waiting: that is what it did last

  // Transfers: called when one is posted, and by CompletionQueue when it is done.
  void posted(Transfer& transfer, int64_t bytes, uint64_t operation, Nanoseconds begun);
  void finished(const Transfer& transfer);

  void begin_step(int64_t step);
  void end_step();
  Activity activity() const { return activity_; }
  void set_activity(Activity activity);

 private:
  static void put(FlightWord& word, uint64_t value) { word.store(value, std::memory_order_relaxed); }
  static void add(FlightWord& word, uint64_t value) { put(word, word.load(std::memory_order_relaxed) + value); }
  FlightOperationEntry* entry(uint64_t operation);
  FlightPeerEntry* peer(int rank) { return rank >= 0 && rank < kFlightPeers ? &memory_->peers[static_cast<size_t>(rank)] : nullptr; }
  void add_message(int peer, int64_t bytes, Nanoseconds begun, Nanoseconds now);

  std::shared_ptr<FlightMemory> memory_;
  const base::Clock& clock_;
  std::unordered_map<uint64_t, FlightGroupEntry*> groups_;
  std::unordered_map<int, Nanoseconds> last_sent_;  // by peer: when the last message to it was complete
  std::vector<bool> in_memory_;
  Activity activity_ = Activity::starting;
  Nanoseconds activity_since_{}, wait_since_{};
  Nanoseconds waited_at_step_{}, loading_at_step_{}, waited_{}, loading_{};
};

// Sets an activity for as long as it lives. A null recorder is allowed.
class ScopedActivity {
 public:
  ScopedActivity(FlightRecorder* recorder, Activity activity) : recorder_(recorder), before_(recorder ? recorder->activity() : activity) {
    if (recorder_) recorder_->set_activity(activity);
  }
  ~ScopedActivity() {
    if (recorder_) recorder_->set_activity(before_);
  }
  ScopedActivity(const ScopedActivity&) = delete;
  ScopedActivity& operator=(const ScopedActivity&) = delete;

 private:
  FlightRecorder* recorder_;
  Activity before_;
};

}  // namespace cairn::comm
