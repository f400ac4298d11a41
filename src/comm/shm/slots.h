// The state of shared-memory collectives, as it lies in the segment that the ranks of a machine share (group.h explains the protocol).
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/envelope.h"

namespace cairn::comm {

inline constexpr int kShmRanksMax = 8;       // larger groups use messages: every rank polls every other one
inline constexpr int kShmSlotsInFlight = 4;  // operations of one group in flight; further ones wait for the oldest
inline constexpr int kPhaseBits = 24;
inline constexpr uint32_t kLastPhase = (1u << kPhaseBits) - 1;  // the rank reads nothing more of this operation

// One rank's state in one operation: its progress, and where the others may read. Only this rank writes it; it writes it again for a later
// operation when all ranks have reached the last phase of this one.
struct alignas(128) ShmSlot {
  struct Region {
    int64_t place;  // offset in the arena of the slot's rank
    int64_t bytes;
  };
  std::atomic<uint64_t> stamp;  // (sequence + 1) << kPhaseBits | phase
  int64_t buffer_stride;        // double buffering: chunk k lies at place + (k % 2) * stride; 0: chunks lie one after the other
  Signature signature;
  std::array<Region, kShmRanksMax> regions;  // what each reader may read, by the reader's position in the group
  char what[sizeof(Envelope::what)];
};

// One rank's slots for one group, in that rank's arena.
struct ShmSlots {
  std::array<ShmSlot, kShmSlotsInFlight> slots;
};

// Where a rank's ShmSlots are, by group: a lock-free hash table with one writer. Entries are never removed.
class ShmSlotsDirectory {
 public:
  static constexpr int64_t kNone = -1;  // the rank takes no part in shared-memory collectives of that group

  // Called by the rank itself, once per group. False: the table is full, and the others find kNone.
  bool enter(uint64_t group, int64_t place);
  // The offset of the slots in that rank's arena; nullopt: not entered yet.
  std::optional<int64_t> find(uint64_t group) const;

 private:
  struct Entry {
    std::atomic<uint64_t> group;  // the id + 1; 0: free
    std::atomic<int64_t> place;
  };
  std::atomic<uint32_t> full_;
  std::atomic<uint32_t> used_;
  std::array<Entry, 2048> entries_;
};

}  // namespace cairn::comm
