#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/inbox.h"
#include "comm/ledger.h"
#include "comm/net/byte_stream.h"
#include "comm/net/frame.h"
#include "comm/net/transport.h"
#include "comm/transport.h"

namespace cairn::comm {

// A transfer of the net transport.
struct NetTransfer final : Receive {
  enum class Kind { send, recv, expose, pull, timer };
  Kind kind = Kind::send;
  Purpose purpose = Purpose::control;
  PullMode mode = PullMode::replace;
  Dtype dtype = Dtype::u8;
  uint64_t number = 0;          // of a pull
  std::shared_ptr<void> timer;  // kept while it runs
};

// Where an arriving payload goes: the buffer of its receive, or memory of our own. Both null: the payload is dropped.
struct PayloadTarget {
  std::shared_ptr<Receive> transfer;
  std::shared_ptr<std::byte[]> owned;
};

// Receives the frames of a connection.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  virtual std::optional<PayloadTarget> place(int peer, const Frame& frame) = 0;  // none: no room now, the connection stops reading
  virtual void on_payload(int peer, const Frame& frame, PayloadTarget target) = 0;
  virtual void written(const std::shared_ptr<Transfer>& transfer, const Ledger::Message& booking) = 0;
};

// On a shaped link: a frame leaves from this time on, at this rate.
struct Pace {
  std::chrono::nanoseconds from{};
  double bytes_per_ns = 0;  // 0: unlimited

  int64_t bytes_until(std::chrono::nanoseconds now) const;
  std::chrono::nanoseconds time_of(int64_t bytes) const;
};

// The frames to and from one peer, over a non-blocking byte stream. The caller calls read and write when the socket is ready.
class NetPeer {
 public:
  NetPeer(int rank, std::unique_ptr<ByteStream> stream, int64_t message_bytes_max);  // null: nothing is ever read or written

  // Reads what is there, up to a few megabytes at a time. Throws cairn::Error if the peer is gone or sends a bad frame.
  void read(FrameSink& sink);
  // Writes what the socket accepts and the pace allows. Throws if the peer is gone.
  void write(FrameSink& sink, std::chrono::nanoseconds now);
  void enqueue(const Frame& frame, const void* data, std::shared_ptr<std::byte[]> owned, std::shared_ptr<Transfer> transfer,
               const Ledger::Message& booking, Pace pace = {});
  // When the pace allows the next bytes; none: the pace does not hold anything back.
  std::optional<std::chrono::nanoseconds> held_until() const { return held_until_; }
  // Drops an unsent frame. A half-sent frame cannot be taken back: then nothing more is written to this peer.
  void cancel(const Transfer& transfer);

  bool wants_write() const { return !outgoing_.empty() && !mute_; }
  bool has_buffered() const { return stream_->has_buffered(); }  // more to read, which the socket does not signal
  void end_writing() { stream_->end_writing(); }
  bool parked() const { return parked_; }  // a frame waits for room; read again when there may be some
  int rank() const { return rank_; }
  uint64_t arrivals() const { return arrivals_; }  // grows whenever bytes of the peer arrive

  bool open = true;         // false: lost, or left
  bool said_bye = false;    // it has left in good order
  bool read_armed = false;  // a wait for the socket is pending
  bool write_armed = false;

 private:
  struct Outgoing {
    std::array<std::byte, kFrameBytes> header;
    const std::byte* data;
    int64_t bytes;
    int64_t sent;  // header included
    std::shared_ptr<std::byte[]> owned;
    std::shared_ptr<Transfer> transfer;
    Ledger::Message booking;
    Pace pace;
  };
  bool receive_some();  // false: the socket is empty
  bool begin_frame(FrameSink& sink);
  std::byte* destination();

  int rank_;
  uint64_t arrivals_ = 0;
  std::unique_ptr<ByteStream> stream_;
  int64_t message_bytes_max_;
  std::vector<std::byte> buffer_;  // headers and small payloads, read ahead
  int64_t buffer_begin_ = 0, buffer_end_ = 0;
  std::optional<Frame> frame_;  // the frame whose payload is arriving
  PayloadTarget target_;
  int64_t payload_received_ = 0;
  std::vector<std::byte> scratch_;  // for dropped payloads
  bool parked_ = false;
  bool mute_ = false;
  std::deque<Outgoing> outgoing_;
  std::optional<std::chrono::nanoseconds> held_until_;
};

// A connected socket (-1: to itself) and the byte stream on it.
struct Connection {
  int fd = -1;
  std::unique_ptr<ByteStream> stream;
  int plane = 0;  // the number of the interface that it uses (channel_plan.h)
};

// Connects this rank with every other one: it calls the ranks below its own and is called by those above. Ranks of one machine connect over
// loopback, others with TLS; both ends prove that they have the run's key (handshake.h). Returns the channels of each
// rank, by rank: one, or `options.channels` where sockets carry messages. Throws and names the ranks that did not come. Closes the
// listening sockets.
std::vector<std::vector<Connection>> connect_peers(const NetSetup& setup, const NetOptions& options);

}  // namespace cairn::comm
