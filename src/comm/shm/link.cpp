// Messages through shared memory; link.h lists the three ways: inline, in place, staged.
//
// A record in the ring announces a message. Bytes in the sender's arena stay there until the receiver writes a `release` record with their
// number into the ring of the other direction. A sender that cancels marks its record as withdrawn: a receiver that was reading it then
// distrusts what it read. A message that no receive waits for stays in the ring while that is less than half full, then it is copied.
#include "comm/shm/link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::comm {
namespace {

constexpr int64_t kInlineMax = 8 << 10;   // up to here a copy through the ring costs less than a release
constexpr int64_t kStagedMax = 16 << 20;  // staged bytes that one peer has not read yet

}  // namespace

SharedLink::SharedLink(const SharedSegment& segment, int place, int peer_place, int peer, Arena& own, Inbox& inbox, LinkOwner& owner)
    : peer_(peer),
      writer_(segment.writer(place, peer_place)),
      reader_(segment.reader(peer_place, place)),
      board_(segment.board(peer_place)),
      own_(own),
      theirs_(segment.arena(peer_place)),
      inbox_(inbox),
      owner_(owner) {}

void SharedLink::send(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes, std::shared_ptr<Transfer> transfer,
                      const Ledger::Message& booking) {
  Outgoing one;
  one.purpose = purpose;
  one.envelope = envelope;
  one.data = static_cast<const std::byte*>(data);
  one.bytes = bytes;
  one.transfer = std::move(transfer);
  one.booking = booking;
  if (!outgoing_.empty() || !write(one)) outgoing_.push_back(std::move(one));
}

// Publishes what was written, and wakes the peer if it sleeps.
void SharedLink::publish() {
  writer_.publish();
  std::atomic_thread_fence(std::memory_order_seq_cst);  // store the tail before loading `asleep`; the sleeper does it the other way round
  if (board_.asleep.load(std::memory_order_relaxed) != 0 && board_.asleep.exchange(0) != 0) owner_.wake(peer_);
}

bool SharedLink::write(Outgoing& one) {
  if (one.bytes <= kInlineMax) return write_inline(one);
  return own_.holds(one.data, one.bytes) ? write_in_place(one) : write_staged(one);
}

Record* SharedLink::begin_record(const Outgoing& one, RecordKind kind, int64_t inlined) {
  Record* record = writer_.reserve(inlined);
  if (!record) return nullptr;
  record->kind = kind;
  record->purpose = one.purpose;
  record->placed = 0;
  record->bytes = one.bytes;
  record->part = inlined;
  record->number = one.number;
  if (kind == RecordKind::message) record->envelope = one.envelope;
  return record;
}

bool SharedLink::write_inline(Outgoing& one) {
  Record* record = begin_record(one, RecordKind::message, one.bytes);
  if (!record) return false;
  if (one.bytes > 0) std::memcpy(record->payload(), one.data, static_cast<size_t>(one.bytes));
  publish();
  owner_.sent(one.transfer, one.booking);
  return true;
}

bool SharedLink::write_in_place(Outgoing& one) {
  Record* record = begin_record(one, RecordKind::message, 0);
  if (!record) return false;
  record->placed = 1;
  record->part = one.bytes;
  record->offset = own_.offset_of(one.data);
  record->number = ++next_number_;
  placed_.emplace(next_number_, Placed{one.transfer, one.booking, record, writer_.position(), nullptr, one.bytes});
  publish();
  return true;
}

bool SharedLink::write_staged(Outgoing& one) {
  while (one.sent < one.bytes) {
    const int64_t part = std::min(one.bytes - one.sent, kSharedPartBytes);
    if (staged_bytes_ > 0 && staged_bytes_ + part > kStagedMax) return false;
    void* staged = own_.allocate(part);
    if (!staged) return false;
    Record* record = begin_record(one, one.sent == 0 ? RecordKind::message : RecordKind::more, 0);
    if (!record) {
      own_.free(staged);
      return false;
    }
    std::memcpy(staged, one.data + one.sent, static_cast<size_t>(part));
    record->placed = 1;
    record->part = part;
    record->offset = own_.offset_of(staged);
    record->number = ++next_number_;
    placed_.emplace(next_number_, Placed{nullptr, {}, record, writer_.position(), staged, part});
    staged_bytes_ += part;
    one.sent += part;
    publish();
  }
  owner_.sent(one.transfer, one.booking);
  return true;
}

bool SharedLink::write_release(uint64_t number) {
  Outgoing release;
  release.number = number;
  if (!begin_record(release, RecordKind::release, 0)) return false;
  publish();
  return true;
}

bool SharedLink::flush() {
  bool moved = false;
  while (!releases_.empty() && write_release(releases_.front())) {
    releases_.pop_front();
    moved = true;
  }
  while (!outgoing_.empty()) {
    const int64_t before = outgoing_.front().sent;
    const bool whole = write(outgoing_.front());
    moved |= whole || outgoing_.front().sent != before;
    if (!whole) break;
    outgoing_.pop_front();
  }
  return moved;
}

void SharedLink::cancel(const Transfer& transfer) {
  for (auto& [number, one] : placed_) {
    if (one.transfer.get() != &transfer) continue;
    if (writer_.held(one.position)) one.record->withdrawn.store(1, std::memory_order_release);
    one.transfer = nullptr;
    return;
  }
  const auto found = std::find_if(outgoing_.begin(), outgoing_.end(), [&](const Outgoing& one) { return one.transfer.get() == &transfer; });
  if (found == outgoing_.end()) return;
  CAIRN_CHECK(found->sent == 0 || found == outgoing_.begin(), "a message behind another has been sent in part");
  if (found->sent > 0) {
    owner_.distrust(peer_, "a message to it was cancelled half-way, so that no other can follow");
    outgoing_.clear();
  } else {
    outgoing_.erase(found);
  }
}

bool SharedLink::progress() {
  const bool waiting = !outgoing_.empty() || !releases_.empty();
  const bool sent = waiting && flush();
  const bool got = something_to_read() && read();
  return sent || got;
}

bool SharedLink::read() {
  bool moved = false;
  while (Record* record = reader_.peek()) {
    switch (record->kind) {
      case RecordKind::message:
        if (!read_message(*record)) return moved;
        break;
      case RecordKind::more:
        take_part(*record);
        break;
      case RecordKind::release:
        take_release(*record);
        break;
      case RecordKind::padding:
        break;
    }
    moved = true;
  }
  return moved;
}

std::byte* SharedLink::bytes_of(Record& record) const {
  if (!record.placed) return record.payload();
  if (record.offset < 0 || record.offset > static_cast<int64_t>(theirs_.size()) - record.part) {
    throw Error(Error::Kind::lost_peer, fmt::format("placed {} bytes at {} of its memory, which is shorter", record.part, record.offset));
  }
  return theirs_.data() + record.offset;
}

Envelope SharedLink::envelope_of(const Record& record) {
  Envelope envelope = record.envelope;
  const std::string flaw = flaw_in(envelope);
  if (!flaw.empty()) throw Error(Error::Kind::lost_peer, "wrote a bad record: " + flaw);
  return envelope;
}

// The bytes of a taken record are no longer needed.
void SharedLink::give_back(const Record& record, uint64_t ticket) {
  if (!record.placed) return reader_.give_back(ticket);
  if (record.withdrawn.load(std::memory_order_acquire) != 0) owner_.distrust(peer_, "it withdrew a message while that was being read");
  const uint64_t number = record.number;
  reader_.give_back(ticket);
  if (!releases_.empty() || !write_release(number)) releases_.push_back(number);
}

// A handle that keeps a taken record and its bytes in place.
std::shared_ptr<void> SharedLink::hold(const Record& record, uint64_t ticket) {
  return std::shared_ptr<void>(this, [&record, ticket](void* link) { static_cast<SharedLink*>(link)->give_back(record, ticket); });
}

// False: there is no room for the message now.
bool SharedLink::read_message(Record& record) {
  if (record.part != record.bytes) return begin_parts(record);
  const std::byte* data = bytes_of(record);
  const Envelope envelope = envelope_of(record);
  const Inbox::Found found = inbox_.wanted(peer_, envelope, record.bytes);
  if (found.receive || found.refused) {
    const uint64_t ticket = reader_.take(record);
    if (found.receive && found.receive->viewed) {
      found.receive->view = data;
      found.receive->held = hold(record, ticket);
    } else {
      if (found.receive && record.bytes > 0) std::memcpy(found.receive->data, data, static_cast<size_t>(record.bytes));
      give_back(record, ticket);
    }
    if (found.receive) inbox_.finish(found.receive);
    return true;
  }
  if (reader_.held() + int64_t{record.length} <= reader_.capacity() / 2) {  // may stay in the ring
    const uint64_t ticket = reader_.take(record);
    inbox_.arrive({peer_, envelope, record.bytes, data, hold(record, ticket)});
    return true;
  }
  if (!owner_.may_keep(peer_, record.bytes)) {
    parked_ = true;
    return false;
  }
  const auto memory = owner_.early_memory(peer_, record.bytes);
  if (record.bytes > 0) std::memcpy(memory.get(), data, static_cast<size_t>(record.bytes));
  const Arrival arrival{peer_, envelope, record.bytes, memory.get(), memory};
  give_back(record, reader_.take(record));
  inbox_.arrive(arrival);
  return true;
}

bool SharedLink::begin_parts(Record& record) {
  if (incoming_) throw Error(Error::Kind::lost_peer, "wrote a message into the middle of another");
  const Envelope envelope = envelope_of(record);
  Inbox::Found found = inbox_.wanted(peer_, envelope, record.bytes);
  const bool direct = found.receive && !found.receive->viewed;
  if (!found.receive && !found.refused && !owner_.may_keep(peer_, record.bytes)) {
    parked_ = true;
    return false;
  }
  incoming_ = std::make_unique<Incoming>();
  incoming_->arrival = {.from = peer_, .envelope = envelope, .bytes = record.bytes};
  incoming_->receive = std::move(found.receive);
  if (!direct && !found.refused) incoming_->memory = owner_.early_memory(peer_, record.bytes);
  take_part(record);
  return true;
}

void SharedLink::take_part(Record& record) {
  if (!incoming_ || record.part > incoming_->arrival.bytes - incoming_->got) {
    throw Error(Error::Kind::lost_peer, "wrote a part of a message that was not begun");
  }
  Incoming& in = *incoming_;
  const std::byte* data = bytes_of(record);
  // (Null: the receive was cancelled; drop the bytes.)
  std::byte* to = in.memory ? in.memory.get() : in.receive ? static_cast<std::byte*>(in.receive->data) : nullptr;
  if (to) std::memcpy(to + in.got, data, static_cast<size_t>(record.part));
  in.got += record.part;
  give_back(record, reader_.take(record));
  if (in.got < in.arrival.bytes) return;
  const std::unique_ptr<Incoming> whole = std::move(incoming_);
  if (!whole->memory) {
    if (whole->receive && !whole->receive->done) inbox_.finish(whole->receive);
    return;
  }
  if (whole->receive) {  // a recv_view
    whole->receive->view = whole->memory.get();
    whole->receive->held = whole->memory;
    if (!whole->receive->done) inbox_.finish(whole->receive);
    return;
  }
  whole->arrival.data = whole->memory.get();
  whole->arrival.holder = whole->memory;
  inbox_.arrive(std::move(whole->arrival));
}

void SharedLink::take_release(const Record& record) {
  const auto found = placed_.find(record.number);
  if (found == placed_.end()) throw Error(Error::Kind::lost_peer, "released a message that it was not sent");
  const Placed one = std::move(found->second);
  placed_.erase(found);
  reader_.give_back(reader_.take(record));
  if (one.staged) {
    staged_bytes_ -= one.bytes;
    own_.free(one.staged);
  }
  if (one.transfer) owner_.sent(one.transfer, one.booking);
}

}  // namespace cairn::comm
