#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "comm/envelope.h"
#include "comm/label.h"

namespace cairn::comm {

// What one record of a ring is.
enum class RecordKind : uint8_t {
  padding,  // up to the end of the ring
  message,  // the first, or only, part of a message
  more,     // a further part
  release,  // what was placed under this number was read
};

// The head of a record. The bytes of its part follow, or they are placed in the sender's arena until they are given back.
struct alignas(64) Record {
  uint32_t length;  // of the whole record, a multiple of kRecordAlign
  RecordKind kind;
  Purpose purpose;
  uint8_t placed;                  // 0 or 1; no bool, which may not hold whatever the peer put there
  std::atomic<uint8_t> withdrawn;  // placed, and not 0: the sender has given up, what lies there may be anything
  int64_t bytes;                   // of the whole message
  int64_t part;                    // of these in this record
  int64_t offset;                  // placed: where in the sender's arena
  uint64_t number;                 // placed, release
  Envelope envelope;
  std::byte* payload() { return reinterpret_cast<std::byte*>(this + 1); }
};

constexpr int64_t kRecordAlign = 64;
static_assert(sizeof(Record) % kRecordAlign == 0 && sizeof(Record) <= 192);

// The two positions of a ring, each on lines of its own: bytes ever written and bytes ever given back. They lie in shared memory.
struct RingPositions {
  alignas(128) std::atomic<uint64_t> tail;  // written by the sender alone
  alignas(128) std::atomic<uint64_t> head;  // written by the receiver alone
};

// The sender's end of a ring of records from one rank to another.
class RingWriter {
 public:
  RingWriter(RingPositions& positions, std::byte* memory, int64_t capacity)
      : positions_(&positions), memory_(memory), capacity_(static_cast<uint64_t>(capacity)) {}

  // Room for a record with this much payload, to be filled and then published; null while there is none.
  Record* reserve(int64_t payload);
  void publish();
  uint64_t position() const { return position_; }  // of the record reserved last
  // Whether the receiver still has that record, so that its place is not used again.
  bool held(uint64_t position) const { return position >= positions_->head.load(std::memory_order_acquire); }
  int64_t payload_max() const { return static_cast<int64_t>(capacity_) / 4 - static_cast<int64_t>(sizeof(Record)); }

 private:
  RingPositions* positions_;
  std::byte* memory_;
  uint64_t capacity_;
  uint64_t tail_ = 0;      // as published
  uint64_t reserved_ = 0;  // where it will be after the next publish
  uint64_t position_ = 0;
  uint64_t head_seen_ = 0;  // the receiver's line is looked at only when the ring seems full
};

// The receiver's end. Records are taken in order; each stays where it is until it is given back, in any order.
class RingReader {
 public:
  RingReader(RingPositions& positions, std::byte* memory, int64_t capacity)
      : positions_(&positions), memory_(memory), capacity_(static_cast<uint64_t>(capacity)) {}

  bool empty() const { return positions_->tail.load(std::memory_order_acquire) == next_; }
  // The next record; null where there is none. Throws where what is there is none of ours.
  Record* peek();
  // Takes the record that peek gave. Returns its ticket for give_back.
  uint64_t take(const Record& record);
  void give_back(uint64_t ticket);
  // Of records taken and not given back, and those after them: a sender that finds no room waits for these.
  int64_t held() const { return static_cast<int64_t>(next_ - head_); }
  int64_t capacity() const { return static_cast<int64_t>(capacity_); }

 private:
  struct Taken {
    uint32_t length;
    bool back;
  };
  RingPositions* positions_;
  std::byte* memory_;
  uint64_t capacity_;
  uint64_t next_ = 0;          // to be taken
  uint64_t head_ = 0;          // as published
  uint64_t first_ticket_ = 0;  // of taken_.front()
  std::deque<Taken> taken_;
};

}  // namespace cairn::comm
