// The lock-free ring buffer of records; ring_buffer.h has the protocol.
#include "comm/shm/ring_buffer.h"

#include <new>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::comm {
namespace {

uint64_t record_length(int64_t payload) {
  return static_cast<uint64_t>((static_cast<int64_t>(sizeof(Record)) + payload + kRecordAlign - 1) / kRecordAlign * kRecordAlign);
}

}  // namespace

Record* RingWriter::reserve(int64_t payload) {
  const uint64_t length = record_length(payload);
  CAIRN_CHECK(payload >= 0 && payload <= payload_max(), "a record of {} bytes in a ring of {}", payload, capacity_);
  const uint64_t at = tail_ % capacity_, to_end = capacity_ - at;
  const uint64_t padding = length > to_end ? to_end : 0;
  const uint64_t after = tail_ + padding + length;
  if (after - head_seen_ > capacity_) {
    head_seen_ = positions_->head.load(std::memory_order_acquire);
    if (after - head_seen_ > capacity_) return nullptr;
  }
  if (padding > 0) {  // to_end may be shorter than a header, but has room for a length and a kind
    auto* pad = reinterpret_cast<Record*>(memory_ + at);
    pad->length = static_cast<uint32_t>(padding);
    pad->kind = RecordKind::padding;
  }
  auto* record = new (memory_ + (tail_ + padding) % capacity_) Record;
  record->length = static_cast<uint32_t>(length);
  record->withdrawn.store(0, std::memory_order_relaxed);
  position_ = tail_ + padding;
  reserved_ = after;
  return record;
}

void RingWriter::publish() {
  tail_ = reserved_;
  positions_->tail.store(tail_, std::memory_order_release);
}

Record* RingReader::peek() {
  while (true) {
    const uint64_t tail = positions_->tail.load(std::memory_order_acquire);
    if (tail == next_) return nullptr;
    if (tail - next_ > capacity_ - (next_ - head_)) {  // a corrupt tail would make this loop endless
      throw Error(Error::Kind::lost_peer, fmt::format("wrote {} bytes into a ring of {}", tail - head_, capacity_));
    }
    const uint64_t at = next_ % capacity_;
    auto* record = reinterpret_cast<Record*>(memory_ + at);
    const uint64_t length = record->length;
    if (length == 0 || length % kRecordAlign != 0 || length > capacity_ - at || length > tail - next_ ||
        record->kind > RecordKind::release) {
      throw Error(Error::Kind::lost_peer, fmt::format("wrote a bad record of {} bytes", length));
    }
    if (record->kind != RecordKind::padding) {
      if (length < sizeof(Record) || record->part < 0 || record->bytes < record->part || record->placed > 1) {
        throw Error(Error::Kind::lost_peer, fmt::format("wrote a bad record with {} of {} bytes", record->part, record->bytes));
      }
      const int64_t inlined = record->placed ? 0 : record->part;
      if (inlined > static_cast<int64_t>(length) || record_length(inlined) != length) {
        throw Error(Error::Kind::lost_peer, fmt::format("wrote a bad record of {} bytes with {} inside", length, inlined));
      }
      return record;
    }
    give_back(take(*record));
  }
}

uint64_t RingReader::take(const Record& record) {
  taken_.push_back({record.length, false});
  next_ += record.length;
  return first_ticket_ + taken_.size() - 1;
}

void RingReader::give_back(uint64_t ticket) {
  taken_[ticket - first_ticket_].back = true;
  bool moved = false;
  while (!taken_.empty() && taken_.front().back) {
    head_ += taken_.front().length;
    taken_.pop_front();
    ++first_ticket_;
    moved = true;
  }
  if (moved) positions_->head.store(head_, std::memory_order_release);
}

}  // namespace cairn::comm
