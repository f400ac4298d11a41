#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/envelope.h"
#include "comm/flight/memory.h"
#include "comm/label.h"

namespace cairn::comm {

// A consistent copy of a rank's flight recorder. Times are nanoseconds of the rank's machine (machine_time()), or virtual.
struct FlightLog {
  using Nanoseconds = std::chrono::nanoseconds;

  struct Operation {
    uint64_t number = 0;  // from 0, over all groups of the rank
    uint64_t group = 0, sequence = 0;
    OperationKind kind = OperationKind::barrier;
    Dtype dtype = Dtype::u8;
    Purpose purpose = Purpose::control;
    Activity activity = Activity::starting;  // of the rank when it entered
    bool sends = false;                      // of a send_recv
    int peer = -1;                           // of a send_recv: the other rank; else the root, where there is one
    int64_t bytes = 0;
    std::string label;
    Nanoseconds entered{};
    std::optional<Nanoseconds> started = {}, ended = {};  // started: the first data of another rank arrived
    Nanoseconds waited{};
    bool failed = false;

    bool collective() const { return kind != OperationKind::send_recv; }
    bool open() const { return !ended || failed; }  // not completed; a failed one stays what the rank was in
  };
  struct Message {
    int peer = 0;
    int64_t bytes = 0;
    Nanoseconds ended{}, service{};
  };
  struct Step {
    int64_t step = 0;
    Nanoseconds begun{}, ended{}, waited{}, loading{};
  };
  struct Group {
    uint64_t id = 0;
    std::string name;
    std::vector<int> ranks;
    uint64_t next_sequence = 0;
  };
  struct Peer {
    int rank = 0;
    int64_t posted_bytes = 0, completed_bytes = 0, messages = 0, received_bytes = 0;
    int64_t sending = 0, awaited = 0;
    Nanoseconds receive_wait{};
    std::optional<Nanoseconds> last_progress = {};
  };

  int rank = -1, size = 0;
  int64_t process = 0;
  std::string host, run;
  uint64_t role = 0;
  int64_t step = 0;
  Activity activity = Activity::starting;
  Nanoseconds activity_since{};
  std::optional<uint64_t> waiting = {};  // the number of the operation in whose wait it is
  Nanoseconds waiting_since{};
  Nanoseconds wait_seen{};  // the last sign that it moves data while it waits
  int64_t groups_missed = 0;
  int64_t operations_begun = 0;
  std::vector<Operation> operations;  // the last ones, oldest first
  std::vector<Message> messages;
  std::vector<Step> steps;  // complete ones
  std::vector<Group> groups;
  std::vector<Peer> peers;  // those with traffic

  const Operation* operation(uint64_t number) const;  // null: no longer in the ring
  const Group* group(uint64_t id) const;              // null: not recorded
};

std::string_view name(Activity activity);

// Copies what can be read consistently; entries that are being rewritten are left out. Nothing: no rank has attached to this memory.
// The memory may belong to another process, so nothing in it is trusted.
std::optional<FlightLog> read_flight_log(const FlightMemory& memory);

}  // namespace cairn::comm
