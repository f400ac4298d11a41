#include "comm/shared_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::comm {
namespace {

constexpr int64_t kInlineMax = 8 << 10;  // up to here a copy through the ring costs less than asking for the memory back

}  // namespace

SharedLink::SharedLink(const SharedSegment& segment, int rank, int peer, const Arena& own, Inbox& inbox, LinkOwner& owner)
    : peer_(peer),
      writer_(segment.writer(rank, peer)),
      reader_(segment.reader(peer, rank)),
      board_(segment.board(peer)),
      own_(own),
      theirs_(segment.arena(peer)),
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
  if (bytes > kInlineMax && own_.holds(data, bytes)) one.kind = RecordKind::in_place;
  if (!outgoing_.empty() || !write(one)) outgoing_.push_back(std::move(one));
}

// Shows the peer what was written, and wakes it where it sleeps.
void SharedLink::publish() {
  writer_.publish();
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the tail before the look at who sleeps, as the sleeper looks the other way round
  if (board_.asleep.load(std::memory_order_relaxed) != 0 && board_.asleep.exchange(0) != 0) owner_.wake(peer_);
}

bool SharedLink::write(Outgoing& one) {
  if (one.kind == RecordKind::message) {
    do {
      if (!write_part(one)) return false;
    } while (one.sent < one.bytes);
    owner_.sent(one.transfer, one.booking);
    return true;
  }
  Record* record = writer_.reserve(0);
  if (!record) return false;
  record->kind = one.kind;
  record->purpose = one.purpose;
  record->bytes = one.bytes;
  record->part = 0;
  record->envelope = one.envelope;
  if (one.kind == RecordKind::in_place) {
    record->offset = own_.offset_of(one.data);
    record->number = ++next_number_;
    in_place_.emplace(next_number_, InPlace{one.transfer, one.booking, record});
  } else {
    record->number = one.number;
  }
  publish();
  return true;
}

bool SharedLink::write_part(Outgoing& one) {
  const int64_t part = std::min({one.bytes - one.sent, kSharedPartBytes, writer_.payload_max()});
  Record* record = writer_.reserve(part);
  if (!record) return false;
  record->kind = one.sent == 0 ? RecordKind::message : RecordKind::more;
  record->purpose = one.purpose;
  record->bytes = one.bytes;
  record->part = part;
  if (one.sent == 0) record->envelope = one.envelope;
  if (part > 0) std::memcpy(record->payload(), one.data + one.sent, static_cast<size_t>(part));
  one.sent += part;
  publish();
  return true;
}

bool SharedLink::flush() {
  bool moved = false;
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
  for (auto& [number, one] : in_place_) {
    if (one.transfer.get() != &transfer) continue;
    one.record->withdrawn.store(true, std::memory_order_release);
    one.transfer = nullptr;
    return;
  }
  const auto found = std::find_if(outgoing_.begin(), outgoing_.end(), [&](const Outgoing& one) { return one.transfer.get() == &transfer; });
  if (found == outgoing_.end()) return;
  CAIRN_CHECK(found->sent == 0 || found == outgoing_.begin(), "a message behind another has been sent in part");
  if (found->sent > 0) {
    owner_.distrust(peer_, "a message to it was given up half-way, so that no other can follow");
    outgoing_.clear();
  } else {
    outgoing_.erase(found);
  }
}

bool SharedLink::progress() {
  const bool sent = !outgoing_.empty() && flush();
  const bool got = something_to_read() && read();
  if (!outgoing_.empty()) flush();  // what reading gave back
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
      case RecordKind::in_place:
        take_in_place(*record);
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

// What keeps a record in the ring.
std::shared_ptr<void> SharedLink::hold(uint64_t ticket) {
  return std::shared_ptr<void>(this, [ticket](void* link) { static_cast<SharedLink*>(link)->reader_.give_back(ticket); });
}

// False: there is no room for it now.
bool SharedLink::read_message(Record& record) {
  if (record.part != record.bytes) return begin_parts(record);
  const Inbox::Found found = inbox_.wanted(peer_, record.envelope, record.bytes);
  if (found.receive || found.refused) {
    const uint64_t ticket = reader_.take(record);
    if (found.refused) {
      reader_.give_back(ticket);
    } else if (found.receive->viewed) {
      found.receive->view = record.payload();
      found.receive->held = hold(ticket);
      inbox_.finish(found.receive);
    } else {
      if (record.bytes > 0) std::memcpy(found.receive->data, record.payload(), static_cast<size_t>(record.bytes));
      reader_.give_back(ticket);
      inbox_.finish(found.receive);
    }
    return true;
  }
  if (reader_.held() + int64_t{record.length} <= reader_.capacity() / 2) {  // may lie where it is
    const Envelope envelope = record.envelope;
    const uint64_t ticket = reader_.take(record);
    inbox_.arrive({peer_, envelope, record.bytes, record.payload(), hold(ticket)});
    return true;
  }
  if (!owner_.may_keep(peer_, record.bytes)) {
    parked_ = true;
    return false;
  }
  const auto memory = owner_.early_memory(peer_, record.bytes);
  if (record.bytes > 0) std::memcpy(memory.get(), record.payload(), static_cast<size_t>(record.bytes));
  const Arrival arrival{peer_, record.envelope, record.bytes, memory.get(), memory};
  reader_.give_back(reader_.take(record));
  inbox_.arrive(arrival);
  return true;
}

bool SharedLink::begin_parts(Record& record) {
  if (incoming_ || record.bytes <= record.part) throw Error(Error::Kind::lost_peer, "wrote a message into the middle of another");
  Inbox::Found found = inbox_.wanted(peer_, record.envelope, record.bytes);
  const bool direct = found.receive && !found.receive->viewed;
  if (!found.receive && !found.refused && !owner_.may_keep(peer_, record.bytes)) {
    parked_ = true;
    return false;
  }
  incoming_ = std::make_unique<Incoming>();
  incoming_->arrival = {.from = peer_, .envelope = record.envelope, .bytes = record.bytes};
  incoming_->receive = std::move(found.receive);
  if (!direct && !found.refused) {
    incoming_->memory = owner_.early_memory(peer_, record.bytes);
    incoming_->to = incoming_->memory.get();
  }
  take_part(record);
  return true;
}

void SharedLink::take_part(const Record& record) {
  if (!incoming_ || record.part > incoming_->arrival.bytes - incoming_->got) {
    throw Error(Error::Kind::lost_peer, "wrote a part of a message that was not begun");
  }
  Incoming& in = *incoming_;
  std::byte* to = in.memory ? in.to : in.receive ? static_cast<std::byte*>(in.receive->data) : nullptr;
  if (to) std::memcpy(to + in.got, const_cast<Record&>(record).payload(), static_cast<size_t>(record.part));
  in.got += record.part;
  reader_.give_back(reader_.take(record));
  if (in.got < in.arrival.bytes) return;
  const std::unique_ptr<Incoming> whole = std::move(incoming_);
  if (!whole->memory) {
    if (whole->receive && !whole->receive->done) inbox_.finish(whole->receive);
    return;
  }
  if (whole->receive) {  // asked for as a view
    whole->receive->view = whole->memory.get();
    whole->receive->held = whole->memory;
    if (!whole->receive->done) inbox_.finish(whole->receive);
    return;
  }
  whole->arrival.data = whole->memory.get();
  whole->arrival.holder = whole->memory;
  inbox_.arrive(std::move(whole->arrival));
}

void SharedLink::take_in_place(Record& record) {
  if (record.offset < 0 || record.offset > static_cast<int64_t>(theirs_.size()) - record.bytes) {
    throw Error(Error::Kind::lost_peer, fmt::format("offered {} bytes at {} of its memory, which is shorter", record.bytes, record.offset));
  }
  const uint64_t ticket = reader_.take(record);
  if (record.withdrawn.load(std::memory_order_acquire)) return give_back_in_place(record, ticket);
  const std::shared_ptr<void> holder(this,
                                     [&record, ticket](void* link) { static_cast<SharedLink*>(link)->give_back_in_place(record, ticket); });
  inbox_.arrive({peer_, record.envelope, record.bytes, theirs_.data() + record.offset, holder});
}

void SharedLink::give_back_in_place(const Record& record, uint64_t ticket) {
  if (record.withdrawn.load(std::memory_order_acquire)) owner_.distrust(peer_, "it withdrew a message while that was being read");
  Outgoing release;
  release.kind = RecordKind::release;
  release.number = record.number;
  reader_.give_back(ticket);
  if (!outgoing_.empty() || !write(release)) outgoing_.push_back(std::move(release));
}

void SharedLink::take_release(const Record& record) {
  const auto found = in_place_.find(record.number);
  if (found == in_place_.end()) throw Error(Error::Kind::lost_peer, "gave back what it was not given");
  const InPlace one = std::move(found->second);
  in_place_.erase(found);
  reader_.give_back(reader_.take(record));
  if (one.transfer) owner_.sent(one.transfer, one.booking);
}

}  // namespace cairn::comm
