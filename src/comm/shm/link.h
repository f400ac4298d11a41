#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>

#include "comm/inbox.h"
#include "comm/ledger.h"
#include "comm/shm/arena.h"
#include "comm/shm/segment.h"

namespace cairn::comm {

constexpr int64_t kSharedPartBytes = 1 << 20;  // of a long message in private memory

// Told by links what they cannot decide themselves.
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  virtual void sent(const std::shared_ptr<Transfer>& transfer, const Ledger::Message& booking) = 0;  // the memory may be used again
  virtual bool may_keep(int peer, int64_t bytes) const = 0;                                          // a message that nobody asked for yet
  virtual std::shared_ptr<std::byte[]> early_memory(int peer, int64_t bytes) = 0;
  virtual void wake(int peer) = 0;                       // it sleeps, and there is something for it
  virtual void distrust(int peer, const char* why) = 0;  // what it sent last may be wrong
};

// Messages to and from one peer on the same machine, through the memory both share. Small ones are copied into a ring; those in this
// rank's arena stay there and are read in place by the peer; long ones in private memory are copied into the arena first, a part at a time.
class SharedLink {
 public:
  // Places are positions in the segment; `peer` is what the others call it.
  SharedLink(const SharedSegment& segment, int place, int peer_place, int peer, Arena& own, Inbox& inbox, LinkOwner& owner);

  void send(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes, std::shared_ptr<Transfer> transfer,
            const Ledger::Message& booking);
  void cancel(const Transfer& transfer);

  bool something_to_read() const { return !reader_.empty() && !parked_; }
  // Moves what can be moved, both ways. Whether anything did.
  bool progress();
  void unpark() { parked_ = false; }                                         // somebody asked for a message: there may be room now
  bool blocked() const { return !outgoing_.empty() || !releases_.empty(); }  // by want of room; the peer tells nobody when it makes some
  // Nothing waits for room, and nothing is placed for the peer to read.
  bool all_sent() const { return outgoing_.empty() && releases_.empty() && placed_.empty(); }

 private:
  struct Outgoing {
    Purpose purpose = Purpose::control;
    Envelope envelope = {};
    const std::byte* data = nullptr;
    int64_t bytes = 0;
    int64_t sent = 0;
    uint64_t number = 0;
    std::shared_ptr<Transfer> transfer = {};
    Ledger::Message booking = {};
  };
  struct Placed {
    std::shared_ptr<Transfer> transfer;  // null: nobody waits for it
    Ledger::Message booking;
    Record* record;
    uint64_t position;  // of the record
    void* staged;       // a copy of ours; null: the sender's own memory
    int64_t bytes;
  };
  struct Incoming {  // a message that comes in parts
    std::shared_ptr<Receive> receive;
    std::shared_ptr<std::byte[]> memory;
    Arrival arrival;
    int64_t got = 0;
  };

  void publish();
  bool write(Outgoing& one);  // whether all of it has gone
  Record* begin_record(const Outgoing& one, RecordKind kind, int64_t inlined);
  bool write_inline(Outgoing& one);
  bool write_in_place(Outgoing& one);
  bool write_staged(Outgoing& one);
  bool write_release(uint64_t number);
  bool flush();
  bool read();
  bool read_message(Record& record);
  bool begin_parts(Record& record);
  void take_part(Record& record);
  void take_release(const Record& record);
  std::byte* bytes_of(Record& record) const;
  static Envelope envelope_of(const Record& record);  // a copy, fit to be used
  void give_back(const Record& record, uint64_t ticket);
  std::shared_ptr<void> hold(const Record& record, uint64_t ticket);

  int peer_;
  RingWriter writer_;
  RingReader reader_;
  StatusBoard& board_;  // the peer's
  Arena& own_;
  std::span<std::byte> theirs_;
  Inbox& inbox_;
  LinkOwner& owner_;
  std::deque<Outgoing> outgoing_;
  std::deque<uint64_t> releases_;                // first of all to go: the peer may wait for this room
  std::unordered_map<uint64_t, Placed> placed_;  // by number
  uint64_t next_number_ = 0;
  int64_t staged_bytes_ = 0;
  std::unique_ptr<Incoming> incoming_;
  bool parked_ = false;
};

}  // namespace cairn::comm
