#pragma once
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/collectives/collectives.h"
#include "comm/collectives/mismatch.h"
#include "comm/device_group.h"
#include "comm/world.h"

namespace cairn::comm {

// A started operation, shared by its group (until it is complete) and the Work handles on it.
struct Operation final : Work::State {
  Operation(Group::State& owner, const Signature& what_it_is, uint64_t number, Label label, Arguments on, const Envelope& envelope);

  bool ready() const override { return complete; }
  void wait() override;       // of a device operation: makes the caller's stream wait
  void wait_host() override;  // blocks until it is complete
  void wait_for(const std::function<bool()>& reached);
  void wait_long(const std::function<bool()>& done);

  std::string describe() const;  // "all_reduce of w, 12 f32"
  bool under_way() const;
  bool finished() const;  // without an error; complete once all operations before it are
  std::optional<Error> failure() const;
  void* current_stream() const;        // of a device operation
  void end(std::optional<Error> how);  // completes or fails it; cancels what is in flight
  // What keeps it from completing: itself, or the first unfinished operation before it.
  const Operation& blocking_operation() const;
  // The ranks it waits for: those seen not to have started it; else those whose messages are missing and that are not seen in it either.
  // (In a ring or tree the neighbour whose message is missing may itself be waiting.)
  std::vector<int> culprits() const;
  Error timed_out(std::chrono::nanoseconds waited) const;
  void warn(std::chrono::nanoseconds waited) const;

  Group::State* group;  // null once the operation is complete or the group is gone
  Signature signature;
  uint64_t sequence;
  std::string what;
  Purpose purpose;
  Arguments arguments;
  Exchange exchange;
  std::chrono::nanoseconds begun{};
  std::chrono::nanoseconds deadline{};
  std::optional<uint64_t> flight;  // its number in the flight recorder; unset: not recorded
  bool complete = false;
  std::optional<Error> error;
  std::shared_ptr<void> keep;      // keeps the buffers until it is complete
  std::shared_ptr<DeviceJob> job;  // of a device operation, until it is complete; then `task` is the roll call
  Coroutine task;                  // last: it refers to the members above
};

// The inside of a Group.
struct Group::State {
  World& world;
  Transport& transport;
  std::vector<int> ranks;
  int me = 0;
  uint64_t id = 0;  // even; point-to-point messages carry id + 1
  std::chrono::nanoseconds deadline{};

  uint64_t next_sequence = 0;
  std::map<int, uint64_t> next_sent = {}, next_received = {};   // by peer
  std::deque<std::shared_ptr<Operation>> collectives = {};      // in flight, in the order of their start
  std::vector<std::shared_ptr<Operation>> point_to_point = {};  // in flight; each completes on its own

  // The record of an operation. Its name is made on demand.
  struct Past {
    uint64_t sequence = 0;
    Signature signature;
    std::string what;
    Purpose purpose = Purpose::control;
    std::chrono::nanoseconds begun{}, ended{};
    bool failed = false;
  };
  std::deque<Past> past = {};  // consecutive sequence numbers, those in flight included
  std::optional<Error> broken = {};

  // The earliest operation on which members disagree: ranks that are further can report on it as well.
  std::optional<CollectiveMismatch> mismatch = {};
  std::vector<Coroutine> signature_reports = {};
  size_t lost_peers_seen = 0;
  std::optional<std::chrono::nanoseconds> tainted_since = {};
  std::shared_ptr<void> keep_next = {};                      // what the next started operation keeps alive
  std::optional<std::shared_ptr<DeviceGroup>> devices = {};  // unset: not asked for yet

  // The device group of the members; null: there is none.
  DeviceGroup* device_group();

  Work start(Signature signature, Label label, Arguments arguments, Coroutine (*algorithm)(Exchange&, const Arguments&));
  void record(Operation& operation, const Envelope& envelope, bool sends);  // in the flight recorder
  void hand_over(Operation& operation, bool sends);                         // starts it on the device
  // Completes finished operations in order; fails all if a member is lost or an operation failed.
  void settle();
  void give_up(const Operation& operation, const Error& error);
  bool check_lost_peers(bool only_tainted);
  Error broken_for(const Operation& operation) const;  // the error that broke the group, as this operation reports it
  void fail_all(const Error& error);
  // Checks an unexpected message against the operation of its number, if that has started. Called inside the transport's progress, so it
  // fails nothing itself.
  void check_early(int from, const Envelope& envelope);
  const Past* called(uint64_t sequence) const;  // null: not started yet, or too long ago
  void note_mismatch(const Past& ours, int from, const Envelope& theirs);
  void resolve_mismatch();        // ends a mismatch once the culprit is certain
  bool mismatch_pending() const;  // a mismatch waits for reports
  // Looks at the members' status boards for another signature of the same operation.
  void check_statuses(const Operation& operation);
  void note_end(const Operation& operation);
  std::string where(const Operation& operation) const;  // "operation 5 of ranks 0 1 2"
};

}  // namespace cairn::comm
