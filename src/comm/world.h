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
  std::chrono::nanoseconds deadline = std::chrono::seconds(300);  // of every operation, unless its group says otherwise
  std::chrono::nanoseconds warn_after = std::chrono::seconds(5);  // a late rank is named in the log after this wait
  base::Log log = base::Log::quiet();
  // Called as the collective with this number (counted from 0 over all groups) is about to start. Where tests let a rank die or freeze.
  std::function<void(int64_t number)> before_collective = {};
};

// What one rank knows of the ranks it works with: its number, the groups, the clock, the book. Not a singleton: several worlds may live in
// one process, each used by one thread.
class World {
 public:
  World(std::unique_ptr<Transport> transport, WorldOptions options = {});
  // Waits (not long) for messages not yet gone, and leaves. Work of this world that is not done by then fails.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;

  Group& everyone();
  Group& alone();
  // The group of these ranks, in this order; this rank must be one of them. Cheap, needs no agreement, and gives the same group again when
  // asked again. Traffic that must not queue behind the foreground has a name of its own.
  Group& group(std::vector<int> ranks, std::string_view name = "");

  Ledger& ledger();
  base::Log& log();
  const base::Clock& clock() const;  // deadlines and schedules; virtual on `local`, where it moves only while all ranks wait
  const base::Clock& wall() const;   // metrics; always real

  // Done at this time of clock().
  Work timer(std::chrono::nanoseconds at);

  std::vector<int> lost() const;  // ranks known to be gone
  // Tells the others why this rank ends early. They get an error that says so. Called at the edge where a rank's error is caught.
  void fail(const std::exception& reason);

  Transport& transport() { return *transport_; }
  std::chrono::nanoseconds warn_after() const { return options_.warn_after; }

 private:
  friend struct Group::State;
  void before_collective();                                    // counts it, and lets faults strike
  void note_early(int from, const Envelope& envelope);         // a message that nobody here asked for yet
  void check_earlier(Group::State& group, uint64_t sequence);  // those that came before this operation was started

  std::unique_ptr<Transport> transport_;
  WorldOptions options_;
  base::RealClock wall_;
  int exceptions_at_start_;
  int64_t collectives_ = 0;
  std::map<std::pair<std::vector<int>, std::string>, std::unique_ptr<Group>> groups_;
  std::map<uint64_t, Group*> by_id_;
  struct Early;
  std::unique_ptr<Early> early_;
};

}  // namespace cairn::comm
