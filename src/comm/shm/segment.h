#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "comm/envelope.h"
#include "comm/flight/memory.h"
#include "comm/shm/ring_buffer.h"
#include "comm/shm/slots.h"

namespace cairn::comm {

// What a rank publishes to the others of its machine.
class StatusBoard {
 public:
  // 1: the rank sleeps and wants a wake frame. It sets this before its last look at the rings; the waking rank clears it.
  alignas(128) std::atomic<uint32_t> asleep;
  // The heartbeat counter: grows while the process runs.
  alignas(128) std::atomic<uint64_t> beat;

  // The operation that the rank started last, behind a sequence lock.
  void publish_operation(const Envelope& envelope);
  std::optional<Envelope> read_operation() const;  // none before the first one, and if the bytes are invalid

 private:
  alignas(128) std::atomic<uint64_t> version_;  // odd while a write is in progress
  // Stored word by word, so that a concurrent read is no data race; the version tells whether the words belong together.
  std::array<std::atomic<uint64_t>, sizeof(Envelope) / sizeof(uint64_t)> doing_;
};

// The memory that the ranks of one machine share: per rank a status board, a directory of slots, a flight recorder and an arena, per
// ordered pair of ranks a ring buffer. It is a sparse anonymous file: only touched pages take memory.
class SharedSegment {
 public:
  static int create(int ranks);  // returns its file descriptor
  SharedSegment(int fd, int ranks);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  StatusBoard& board(int rank) const;
  ShmSlotsDirectory& directory(int rank) const;
  FlightMemory& flight(int rank) const;
  RingWriter writer(int from, int to) const;
  RingReader reader(int from, int to) const;
  std::span<std::byte> arena(int rank) const;

 private:
  std::byte* ring(int from, int to) const;
  int ranks_;
  std::byte* memory_;
};

}  // namespace cairn::comm
