#pragma once
#include <array>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/coroutine.h"
#include "comm/mailbox/frame.h"
#include "comm/transport.h"

namespace cairn::comm {

// The mailbox frames to and from one rank, in order. A frame is up to three transport messages with one sequence number: a header of fixed
// size, the names, the body. One receive is always posted. When too many bytes are unread the channel stops reading (back-pressure).
class Channel {
 public:
  struct Reader {
    std::function<void(int peer, MailboxFrame&&)> arrived;
    std::function<void(int peer, const Error&)> broken;  // no more frames will come
  };
  using Sent = std::function<void(const Error* failure)>;  // called once: the frame is sent, or cannot be sent

  Channel(Transport& transport, int peer, uint64_t group, int64_t body_bytes_max, int64_t unread_bytes_max, Reader reader);
  void start() { reading_ = read(); }  // may deliver frames at once

  void send(MailboxFrame&& frame, Sent sent);
  void close(const Error& why);  // the peer is gone: fails what is not sent
  bool idle();                   // nothing is left to send

  void keep(int64_t bytes) { unread_bytes_ += bytes; }
  void release(int64_t bytes);  // of unread bytes; may deliver further frames
  bool full() const { return unread_bytes_ > unread_bytes_max_; }
  int64_t unread_bytes() const { return unread_bytes_; }

 private:
  struct Outgoing {
    uint64_t sequence = 0;
    MailboxFrame frame;
    std::array<std::byte, kMailboxHeaderBytes> header{};
    std::string names;
    Sent sent;
    bool done = false;
    Coroutine task;  // last: it refers to the members above
  };
  struct Room {  // awaits room for more unread bytes
    Channel& channel;
    bool await_ready() const noexcept { return !channel.full(); }
    void await_suspend(std::coroutine_handle<> reader) noexcept { channel.waiting_for_room_ = reader; }
    void await_resume() const noexcept {}
  };
  Coroutine read();
  Coroutine post(Outgoing& one);
  Envelope envelope(uint64_t sequence, uint32_t step, int64_t bytes) const;

  Transport& transport_;
  int peer_;
  uint64_t group_;
  int64_t body_bytes_max_, unread_bytes_max_;
  Reader reader_;
  uint64_t next_sent_ = 0;
  int64_t unread_bytes_ = 0;
  bool closed_ = false;
  std::coroutine_handle<> waiting_for_room_;
  std::deque<std::unique_ptr<Outgoing>> outgoing_;
  Coroutine reading_;  // last: it refers to the members above
};

}  // namespace cairn::comm
