#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/ledger.h"

namespace cairn::comm {

class Transport;
struct Envelope;

struct WorldOptions {
  std::chrono::nanoseconds deadline = std::chrono::seconds(300);  // of every operation; a group may have its own
  std::chrono::nanoseconds warn_after = std::chrono::seconds(5);  // after this wait the log names the late ranks
  base::Log log = base::Log::quiet();
  // Called before collective `number` (from 0, over all groups) starts. Tests kill or freeze a rank there.
  std::function<void(int64_t number)> before_collective = {};
};

// One rank's view of a job: its rank, the groups, the clock, the ledger. Not a singleton: several worlds may live in one process, each used
// by one thread.
class World {
 public:
  World(std::unique_ptr<Transport> transport, WorldOptions options = {});
  // Waits a moment for outgoing messages, then leaves. Work that is not done by then fails.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;

  Group& everyone();
  Group& alone();
  // The group of these world ranks, in this order; this rank must be one of them. Cheap and cached: no communication, and the same group
  // for the same arguments. Background traffic that must not queue behind the foreground uses a group with a name of its own.
  Group& group(std::vector<int> ranks, std::string_view name = "");

  Ledger& ledger();
  base::Log& log();
  const base::Clock& clock() const;  // for deadlines and schedules; virtual on `local`, where it advances only while all ranks wait
  const base::Clock& wall() const;   // for metrics; always real time
  std::chrono::nanoseconds waited() const { return waited_; }  // time that this rank has spent in waits for operations, by wall()

  // Done at this time of clock().
  Work timer(std::chrono::nanoseconds at);

  std::vector<int> lost() const;  // ranks known to be lost
  // Tells the other ranks why this one ends early; they get an error with this reason. Called where a rank's error is caught.
  void fail(const std::exception& reason);

  Transport& transport() { return *transport_; }
  std::chrono::nanoseconds warn_after() const { return options_.warn_after; }

 private:
  friend struct Group::State;
  friend struct Operation;
  void before_collective();                                    // counts it and calls the option of that name
  void note_early(int from, const Envelope& envelope);         // an unexpected message arrived
  void check_earlier(Group::State& group, uint64_t sequence);  // checks the messages that came before this operation started

  std::unique_ptr<Transport> transport_;
  WorldOptions options_;
  base::RealClock wall_;
  int exceptions_at_start_;
  int64_t collectives_ = 0;
  std::chrono::nanoseconds waited_{0};
  std::map<std::pair<std::vector<int>, std::string>, std::unique_ptr<Group>> groups_;
  std::map<uint64_t, Group*> by_id_;
  struct Early;
  std::unique_ptr<Early> early_;
};

}  // namespace cairn::comm
