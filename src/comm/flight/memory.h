// The layout of a rank's flight recorder. It lies in memory that another process may read at any time, also when the rank hangs or is
// dead: in the segment that the ranks of a machine share, or in private memory. All zero means: nothing is recorded.
//
// One writer, many readers, no locks. A ring entry has a stamp (its number + 1; 0 while it is rewritten), read before and after the rest.
// Every word is atomic, so that a concurrent read is no data race.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

namespace cairn::comm {

inline constexpr int kFlightOperations = 2048;  // the last ones of a rank
inline constexpr int kFlightMessages = 4096;
inline constexpr int kFlightSteps = 256;
inline constexpr int kFlightGroups = 256;  // further groups are counted, not recorded
inline constexpr int kFlightMembers = 8192;
inline constexpr int kFlightPeers = 1024;  // ranks beyond have no counters
inline constexpr int kFlightNameBytes = 32;
inline constexpr int kFlightPathBytes = 512;

// What a rank is doing where it is in no operation.
enum class Activity : uint8_t { starting, loading, computing, updating, saving, evaluating, ended };
inline constexpr int kActivities = 7;

using FlightWord = std::atomic<uint64_t>;
using FlightName = std::array<FlightWord, kFlightNameBytes / 8>;

struct alignas(128) FlightOperationEntry {
  FlightWord stamp;
  FlightWord group, sequence;
  FlightWord what;  // kind, dtype, purpose, activity, whether it sends: a byte each; above them the peer or root + 1
  FlightWord bytes;
  FlightWord entered, started, ended;  // nanoseconds + 1; 0: not yet
  FlightWord waited;                   // nanoseconds that the rank has waited for it
  FlightWord failed;
  FlightName label;
};

struct FlightMessageEntry {
  FlightWord stamp;
  FlightWord peer, bytes, ended, service;  // service: nanoseconds from the start (or the end of the pair's previous message) to the end
};

struct FlightStepEntry {
  FlightWord stamp;
  FlightWord step, begun, ended, waited, loading;  // nanoseconds; waited: for other ranks
};

struct FlightGroupEntry {
  FlightWord id, first, size;  // its members are members[first], ...
  FlightWord next_sequence;    // collectives that the rank has entered
  FlightName name;
};

struct FlightPeerEntry {
  FlightWord posted_bytes, completed_bytes, messages;  // sent to it
  FlightWord received_bytes, receive_wait;             // receive_wait: nanoseconds that receives were posted before their data had come
  FlightWord sending, awaited;                         // transfers under way now
  FlightWord last_progress;
};

struct FlightMemory {
  // The rank itself.
  FlightWord attached;                    // 1: the fields below are valid
  FlightWord rank, size, process, epoch;  // epoch: of its clock, in nanoseconds of the machine's monotonic clock
  FlightWord role;                        // ranks with the same role do the same work
  FlightWord step, activity, activity_since;
  FlightWord waiting, waiting_since;  // the number + 1 of the operation in whose wait it is; 0: none
  FlightWord wait_seen;               // when it last looked whether the wait is over: it is alive and moves data
  FlightWord waited, loading;         // sums
  FlightWord groups_missed;
  std::array<FlightWord, 8> host;
  std::array<FlightWord, kFlightPathBytes / 8> run;  // the run directory
  // The rings.
  FlightWord operations_begun, messages_ended, steps_begun, groups_known, members_used;
  std::array<FlightOperationEntry, kFlightOperations> operations;
  std::array<FlightMessageEntry, kFlightMessages> messages;
  std::array<FlightStepEntry, kFlightSteps> steps;
  std::array<FlightGroupEntry, kFlightGroups> groups;
  std::array<std::atomic<int32_t>, kFlightMembers> members;
  std::array<FlightPeerEntry, kFlightPeers> peers;
};

}  // namespace cairn::comm
