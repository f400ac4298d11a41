#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>

#include "comm/arena.h"
#include "comm/inbox.h"
#include "comm/ledger.h"
#include "comm/shared_segment.h"

namespace cairn::comm {

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

// Messages to and from one peer on the same machine, through the memory both share. Small ones, and those in private memory, are copied
// into a ring, a part at a time; those in this rank's arena stay there and are read in place by the peer.
class SharedLink {
 public:
  SharedLink(const SharedSegment& segment, int rank, int peer, const Arena& own, Inbox& inbox, LinkOwner& owner);

  void send(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes, std::shared_ptr<Transfer> transfer,
            const Ledger::Message& booking);
  void cancel(const Transfer& transfer);

  bool something_to_read() const { return !reader_.empty() && !parked_; }
  // Moves what can be moved, both ways. Whether anything did.
  bool progress();
  void unpark() { parked_ = false; }  // somebody asked for a message: there may be room now
  // Nothing waits for room in the ring, and nothing lies in place for the peer to read.
  bool all_sent() const { return outgoing_.empty() && in_place_.empty(); }

 private:
  struct Outgoing {
    RecordKind kind = RecordKind::message;
    Purpose purpose = Purpose::control;
    Envelope envelope = {};
    const std::byte* data = nullptr;
    int64_t bytes = 0;
    int64_t sent = 0;
    uint64_t number = 0;  // of a release
    std::shared_ptr<Transfer> transfer = {};
    Ledger::Message booking = {};
  };
  struct InPlace {
    std::shared_ptr<Transfer> transfer;
    Ledger::Message booking;
    Record* record;
  };
  struct Incoming {  // a message that comes in parts
    std::shared_ptr<Receive> receive;
    std::shared_ptr<std::byte[]> memory;
    Arrival arrival;
    std::byte* to = nullptr;  // null: nobody wants it any more
    int64_t got = 0;
  };

  void publish();
  bool write(Outgoing& one);  // whether all of it is in the ring
  bool write_part(Outgoing& one);
  bool flush();
  bool read();
  bool read_message(Record& record);
  bool begin_parts(Record& record);
  void take_part(const Record& record);
  void take_in_place(Record& record);
  void take_release(const Record& record);
  void give_back_in_place(const Record& record, uint64_t ticket);
  std::shared_ptr<void> hold(uint64_t ticket);

  int peer_;
  RingWriter writer_;
  RingReader reader_;
  Board& board_;  // the peer's
  const Arena& own_;
  std::span<std::byte> theirs_;
  Inbox& inbox_;
  LinkOwner& owner_;
  std::deque<Outgoing> outgoing_;
  std::unordered_map<uint64_t, InPlace> in_place_;  // by number
  uint64_t next_number_ = 0;
  std::unique_ptr<Incoming> incoming_;
  bool parked_ = false;
};

}  // namespace cairn::comm
