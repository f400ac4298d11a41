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

constexpr int64_t kSharedPartBytes = 1 << 20;  // a long message in private memory is staged in parts of this size

// What links ask of the transport that owns them.
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  virtual void sent(const std::shared_ptr<Transfer>& transfer,
                    const Ledger::Message& booking) = 0;     // a send is complete: its memory may be reused
  virtual bool may_keep(int peer, int64_t bytes) const = 0;  // whether an unexpected message may be kept
  virtual std::shared_ptr<std::byte[]> early_memory(int peer, int64_t bytes) = 0;
  virtual void wake(int peer) = 0;                       // it sleeps, and something waits for it
  virtual void distrust(int peer, const char* why) = 0;  // its last message may be wrong
};

// Messages to and from one peer of the same machine through shared memory. Three ways for a message:
//   inline    up to 8 KB: copied into the ring buffer;
//   in place  in this rank's arena: a record says where, the peer reads it there and releases it;
//   staged    longer, in private memory: copied into the arena in parts of 1 MB, each of which the peer releases.
class SharedLink {
 public:
  // `place` and `peer_place` are positions in the segment, `peer` is a world rank.
  SharedLink(const SharedSegment& segment, int place, int peer_place, int peer, Arena& own, Inbox& inbox, LinkOwner& owner);

  void send(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes, std::shared_ptr<Transfer> transfer,
            const Ledger::Message& booking);
  void cancel(const Transfer& transfer);

  bool something_to_read() const { return !reader_.empty() && !parked_; }
  // Sends and receives what is possible now. Returns whether anything moved.
  bool progress();
  void unpark() { parked_ = false; }                                         // a receive was posted: there may be room now
  bool blocked() const { return !outgoing_.empty() || !releases_.empty(); }  // waits for room, of which the peer does not notify
  // Nothing waits for room, and the peer has read everything.
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
    std::shared_ptr<Transfer> transfer;  // null: nobody waits for the end of the send
    Ledger::Message booking;
    Record* record;
    uint64_t position;  // of the record in the ring
    void* staged;       // staged copy; null: the message is read in place
    int64_t bytes;
  };
  struct Incoming {  // a message that arrives in parts
    std::shared_ptr<Receive> receive;
    std::shared_ptr<std::byte[]> memory;
    Arrival arrival;
    int64_t got = 0;
  };

  void publish();
  bool write(Outgoing& one);  // returns whether all of it is written
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
  static Envelope envelope_of(const Record& record);  // a checked copy
  void give_back(const Record& record, uint64_t ticket);
  std::shared_ptr<void> hold(const Record& record, uint64_t ticket);

  int peer_;
  RingWriter writer_;
  RingReader reader_;
  StatusBoard& board_;  // of the peer
  Arena& own_;
  std::span<std::byte> theirs_;
  Inbox& inbox_;
  LinkOwner& owner_;
  std::deque<Outgoing> outgoing_;
  std::deque<uint64_t> releases_;                // sent before messages: the peer may wait for the room
  std::unordered_map<uint64_t, Placed> placed_;  // by number
  uint64_t next_number_ = 0;
  int64_t staged_bytes_ = 0;
  std::unique_ptr<Incoming> incoming_;
  bool parked_ = false;
};

}  // namespace cairn::comm
