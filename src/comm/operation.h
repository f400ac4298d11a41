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

// One started operation, shared by its group (until it is complete) and the Work handles on it.
struct Operation final : Work::State {
  Operation(Group::State& owner, const Signature& what_it_is, uint64_t number, Label label, Arguments on, const Envelope& envelope);

  bool ready() const override { return complete; }
  void wait() override;       // of one among devices: lets the caller's stream wait
  void wait_host() override;  // until it is complete
  void wait_for(const std::function<bool()>& reached);
  void wait_long(const std::function<bool()>& done);

  std::string describe() const;  // "all_reduce of w, 12 f32"
  bool under_way() const;
  bool finished() const;  // without an error; it is complete once those before it are
  std::optional<Error> failure() const;
  void* current_stream() const;        // of one among devices
  void end(std::optional<Error> how);  // done, or failed; cancels what is still under way
  // What keeps it from completing: itself, or the first unfinished operation before it.
  const Operation& holdup() const;
  // Whom it waits for: those who have not started it, where that can be seen; else those whose messages are missing and who do not show
  // that they are in it too. In a ring or tree the one whose message is missing may itself only wait.
  std::vector<int> culprits() const;
  Error timed_out(std::chrono::nanoseconds waited) const;
  void warn(std::chrono::nanoseconds waited) const;

  Group::State* group;  // null once the group is gone or the operation is complete
  Signature signature;
  uint64_t sequence;
  std::string what;
  Purpose purpose;
  Arguments arguments;
  Exchange exchange;
  std::chrono::nanoseconds begun{};
  std::chrono::nanoseconds deadline{};
  bool complete = false;
  std::optional<Error> error;
  std::shared_ptr<void> keep;      // the buffers, until it is complete
  std::shared_ptr<DeviceJob> job;  // of one among devices, until it is complete; the task is then the ranks' roll call
  Coroutine task;                  // last: it refers to what is above
};

// What a group is inside.
struct Group::State {
  World& world;
  Transport& transport;
  std::vector<int> ranks;
  int me = 0;
  uint64_t id = 0;  // even; point-to-point messages carry id + 1
  std::chrono::nanoseconds deadline{};

  uint64_t next_sequence = 0;
  std::map<int, uint64_t> next_sent = {}, next_received = {};   // by peer
  std::deque<std::shared_ptr<Operation>> collectives = {};      // under way, in the order of their start
  std::vector<std::shared_ptr<Operation>> point_to_point = {};  // under way; each completes on its own

  // What is kept of an operation when it is over; its name is made when somebody asks.
  struct Past {
    uint64_t sequence = 0;
    Signature signature;
    std::string what;
    Purpose purpose = Purpose::control;
    std::chrono::nanoseconds begun{}, ended{};
    bool failed = false;
  };
  std::deque<Past> past = {};  // of consecutive numbers; those under way too
  std::optional<Error> broken = {};

  // Of all that members disagree on the earliest: whoever has come further has something to say to that, too.
  std::optional<CollectiveMismatch> mismatch = {};
  std::vector<Coroutine> signature_reports = {};
  size_t lost_peers_seen = 0;
  std::optional<std::chrono::nanoseconds> tainted_since = {};
  std::shared_ptr<void> keep_next = {};                      // what the operation started next shall keep alive
  std::optional<std::shared_ptr<DeviceGroup>> devices = {};  // once somebody asked

  // What the members' devices do among themselves; null: nothing.
  DeviceGroup* device_group();

  Work start(Signature signature, Label label, Arguments arguments, Coroutine (*algorithm)(Exchange&, const Arguments&));
  void hand_over(Operation& operation, bool sends);  // to the device
  // Completes what is done, in order, and fails everything where a member is lost or an operation failed.
  void settle();
  void give_up(const Operation& operation, const Error& error);
  bool check_lost_peers(bool only_tainted);
  Error broken_for(const Operation& operation) const;  // what broke the group, as this operation reports it
  void fail_all(const Error& error);
  // A message arrived that no operation asked for (yet): does it fit the operation of that number, if it began?
  // Or it does not fit the one that did. Called while the transport is at work: nothing is failed here.
  void check_early(int from, const Envelope& envelope);
  const Past* called(uint64_t sequence) const;  // null: not yet, or too long ago
  void note_mismatch(const Past& ours, int from, const Envelope& theirs);
  void resolve_mismatch();        // ends a dispute, once it is clear
  bool mismatch_pending() const;  // and somebody has yet to be heard
  // Does a member show that it is in another operation of the same number?
  void check_statuses(const Operation& operation);
  void note_end(const Operation& operation);
  std::string where(const Operation& operation) const;  // "operation 5 of ranks 0 1 2"
};

}  // namespace cairn::comm
