#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "comm/envelope.h"
#include "comm/label.h"

namespace cairn::comm {

// A lock-free ring buffer for one sender and one receiver in shared memory, made of variable-length records.
//
// tail and head count bytes that were ever written and ever given back; both only grow. Bytes [head, tail) are in use.
//   sender:    reserve  needs tail + length - head <= capacity;  fill the record;  publish  stores tail (release)
//   receiver:  peek     loads tail (acquire);  take;  give_back  in any order stores head past all leading returned records (release)
// Nothing that the peer wrote is trusted: lengths and kinds are checked before use.

// The kind of a record.
enum class RecordKind : uint8_t {
  padding,  // fills the end of the ring
  message,  // the first or only part of a message
  more,     // a further part
  release,  // the placed bytes with this number were read
};

// The header of a record. Its bytes follow it, or are placed in the sender's arena until the receiver releases them.
struct alignas(64) Record {
  uint32_t length;  // of the whole record, a multiple of kRecordAlign
  RecordKind kind;
  Purpose purpose;
  uint8_t placed;                  // 0 or 1; not a bool, since the peer may write any value
  std::atomic<uint8_t> withdrawn;  // not 0: the sender cancelled, and the placed bytes may be overwritten
  int64_t bytes;                   // of the whole message
  int64_t part;                    // of these, the bytes of this record
  int64_t offset;                  // placed: offset in the sender's arena
  uint64_t number;                 // placed, release
  Envelope envelope;
  std::byte* payload() { return reinterpret_cast<std::byte*>(this + 1); }
};

constexpr int64_t kRecordAlign = 64;
static_assert(sizeof(Record) % kRecordAlign == 0 && sizeof(Record) <= 192);

// The two positions of a ring, on cache lines of their own, in shared memory.
struct RingPositions {
  alignas(128) std::atomic<uint64_t> tail;  // written by the sender alone
  alignas(128) std::atomic<uint64_t> head;  // written by the receiver alone
};

// The sender's end.
class RingWriter {
 public:
  RingWriter(RingPositions& positions, std::byte* memory, int64_t capacity)
      : positions_(&positions), memory_(memory), capacity_(static_cast<uint64_t>(capacity)) {}

  // A record with room for this payload, to be filled and published; null: the ring is full.
  Record* reserve(int64_t payload);
  void publish();
  uint64_t position() const { return position_; }  // of the last reserved record
  // Whether the receiver still holds that record.
  bool held(uint64_t position) const { return position >= positions_->head.load(std::memory_order_acquire); }
  int64_t payload_max() const { return static_cast<int64_t>(capacity_) / 4 - static_cast<int64_t>(sizeof(Record)); }

 private:
  RingPositions* positions_;
  std::byte* memory_;
  uint64_t capacity_;
  uint64_t tail_ = 0;      // last published value
  uint64_t reserved_ = 0;  // the tail after the next publish
  uint64_t position_ = 0;
  uint64_t head_seen_ = 0;  // cached head: the shared one is read only when the ring seems full
};

// The receiver's end. Records are taken in order and given back in any order; a taken record stays in place.
class RingReader {
 public:
  RingReader(RingPositions& positions, std::byte* memory, int64_t capacity)
      : positions_(&positions), memory_(memory), capacity_(static_cast<uint64_t>(capacity)) {}

  bool empty() const { return positions_->tail.load(std::memory_order_acquire) == next_; }
  // The next record; null: none. Throws if the bytes are no valid record.
  Record* peek();
  // Takes the record that peek returned. Returns its ticket for give_back.
  uint64_t take(const Record& record);
  void give_back(uint64_t ticket);
  // Bytes that are taken and not given back yet (with all after them): a sender without room waits for these.
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
  uint64_t next_ = 0;          // position of the next record
  uint64_t head_ = 0;          // last published value
  uint64_t first_ticket_ = 0;  // the ticket of taken_.front()
  std::deque<Taken> taken_;
};

}  // namespace cairn::comm
