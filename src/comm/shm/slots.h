// What ranks of one machine show each other in the memory they share, so that a collective needs no message between them.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/envelope.h"

namespace cairn::comm {

inline constexpr int kShmRanksMax = 8;       // more do not meet: each looks at each
inline constexpr int kShmSlotsInFlight = 4;  // operations of one group under way at once; more wait for the first ones
inline constexpr int kPhaseBits = 24;
inline constexpr uint32_t kLastPhase = (1u << kPhaseBits) - 1;  // this rank reads nothing more

// Of one operation: how far its rank has come, and where the others may read. Written by its rank alone, and not again before all the
// others have come to the end of that operation.
struct alignas(128) ShmSlot {
  struct Region {
    int64_t place;  // in the arena of the slot's rank
    int64_t bytes;
  };
  std::atomic<uint64_t> stamp;  // (sequence + 1) << kPhaseBits | phase
  int64_t buffer_stride;        // chunks lie in two places in turn, so far apart; 0: one after the other
  Signature signature;
  std::array<Region, kShmRanksMax> regions;  // for each reader, by position in the group
  char what[sizeof(Envelope::what)];
};

// One rank's slots for one group, in that rank's arena.
struct ShmSlots {
  std::array<ShmSlot, kShmSlotsInFlight> slots;
};

// Says where a rank's desks are, by group. Only grows.
class ShmSlotsDirectory {
 public:
  static constexpr int64_t kNone = -1;  // this rank does not meet in that group

  // By its rank: the desk of a group that has none yet. False: no more room, which the others see as kNone.
  bool enter(uint64_t group, int64_t place);
  // Where that desk is; none: nothing is known yet.
  std::optional<int64_t> find(uint64_t group) const;

 private:
  struct Entry {
    std::atomic<uint64_t> group;  // + 1; 0: free
    std::atomic<int64_t> place;
  };
  std::atomic<uint32_t> full_;
  std::atomic<uint32_t> used_;
  std::array<Entry, 2048> entries_;
};

}  // namespace cairn::comm
