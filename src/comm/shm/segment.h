#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "comm/envelope.h"
#include "comm/shm/ring_buffer.h"
#include "comm/shm/slots.h"

namespace cairn::comm {

// What a rank shows to the others on its machine.
class StatusBoard {
 public:
  // The wish to be woken: set before a last look at the rings, taken away by whoever wakes.
  alignas(128) std::atomic<uint32_t> asleep;
  // Grows as long as the process lives and is not stopped.
  alignas(128) std::atomic<uint64_t> beat;

  // The operation that the rank started last.
  void publish_operation(const Envelope& envelope);
  std::optional<Envelope> read_operation() const;  // none before the first, and where it makes no sense

 private:
  alignas(128) std::atomic<uint64_t> version_;  // odd while it is written
  // Word by word, so that looking while it is written is no race; the version says whether what was seen is whole.
  std::array<std::atomic<uint64_t>, sizeof(Envelope) / sizeof(uint64_t)> doing_;
};

// The memory that the ranks of one machine share: a board and a directory for each, a ring for each ordered pair, an arena for each. A
// sparse anonymous file: only what is touched exists.
class SharedSegment {
 public:
  static int create(int ranks);  // the file
  SharedSegment(int fd, int ranks);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  StatusBoard& board(int rank) const;
  ShmSlotsDirectory& directory(int rank) const;
  RingWriter writer(int from, int to) const;
  RingReader reader(int from, int to) const;
  std::span<std::byte> arena(int rank) const;

 private:
  std::byte* ring(int from, int to) const;
  int ranks_;
  std::byte* memory_;
};

}  // namespace cairn::comm
