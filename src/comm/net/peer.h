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

// What this rank asked the network for.
struct NetTransfer final : Receive {
  enum class Kind { send, recv, expose, pull, timer };
  Kind kind = Kind::send;
  Purpose purpose = Purpose::control;
  PullMode mode = PullMode::replace;
  Dtype dtype = Dtype::u8;
  uint64_t number = 0;          // of a pull
  std::shared_ptr<void> timer;  // kept while it runs
};

// Where an arriving payload goes: the buffer of whoever asked for it, or memory of our own.
struct PayloadTarget {
  std::shared_ptr<Receive> transfer;
  std::shared_ptr<std::byte[]> owned;
};

// Told what a connection brings.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  virtual std::optional<PayloadTarget> place(int peer, const Frame& frame) = 0;  // none: not now, the connection stops reading
  virtual void on_payload(int peer, const Frame& frame, PayloadTarget target) = 0;
  virtual void written(const std::shared_ptr<Transfer>& transfer, const Ledger::Message& booking) = 0;
};

// How fast a frame may go out, where links are shaped: from a time on, so many bytes a second.
struct Pace {
  std::chrono::nanoseconds from{};
  double bytes_per_ns = 0;  // 0: as fast as can be

  int64_t bytes_until(std::chrono::nanoseconds now) const;
  std::chrono::nanoseconds time_of(int64_t bytes) const;
};

// The stream of frames to and from one peer, over a wire that never blocks. It knows nothing of who waits; somebody calls read and write
// when the socket is ready.
class NetPeer {
 public:
  NetPeer(int rank, std::unique_ptr<ByteStream> stream, int64_t message_bytes_max);  // no wire: nothing is ever read or written

  // Reads what is there (not too much at once). Throws cairn::Error where the peer is gone or talks nonsense.
  void read(FrameSink& sink);
  // Writes what the socket takes and the pace allows. Throws where the peer is gone.
  void write(FrameSink& sink, std::chrono::nanoseconds now);
  void enqueue(const Frame& frame, const void* data, std::shared_ptr<std::byte[]> owned, std::shared_ptr<Transfer> transfer,
               const Ledger::Message& booking, Pace pace = {});
  // When the pace lets more go, where it is the pace that holds it back.
  std::optional<std::chrono::nanoseconds> held_until() const { return held_until_; }
  // Forgets what is not sent of it. Half a frame cannot be taken back: then nothing more can be said to this peer.
  void cancel(const Transfer& transfer);

  bool wants_write() const { return !outgoing_.empty() && !mute_; }
  bool has_buffered() const { return stream_->has_buffered(); }  // more to read, of which the socket knows nothing
  void end_writing() { stream_->end_writing(); }
  bool parked() const { return parked_; }  // a frame waits for a place; read again when there may be one
  int rank() const { return rank_; }

  bool open = true;         // false: lost, or left
  bool said_bye = false;    // it has ended in good order
  bool read_armed = false;  // somebody waits for the socket to become ready
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
  bool receive_some();  // false: the socket has no more for now
  bool begin_frame(FrameSink& sink);
  std::byte* destination();

  int rank_;
  std::unique_ptr<ByteStream> stream_;
  int64_t message_bytes_max_;
  std::vector<std::byte> buffer_;  // read ahead: headers and small payloads
  int64_t buffer_begin_ = 0, buffer_end_ = 0;
  std::optional<Frame> frame_;  // whose payload is arriving
  PayloadTarget target_;
  int64_t payload_received_ = 0;
  std::vector<std::byte> scratch_;  // for what nobody wants any more
  bool parked_ = false;
  bool mute_ = false;
  std::deque<Outgoing> outgoing_;
  std::optional<std::chrono::nanoseconds> held_until_;
};

// A connected socket (-1: to itself) and the byte stream on it.
struct Connection {
  int fd = -1;
  std::unique_ptr<ByteStream> stream;
};

// Connects this rank with every other one: it calls the ranks below its own and is called by those above. Ranks of one machine connect over
// loopback, others with TLS; both ends prove that they have the run's key (handshake.h). Returns one connection per rank, by rank. Throws
// and names the ranks that did not come. Closes the listening sockets.
std::vector<Connection> connect_peers(const NetSetup& setup, const NetOptions& options);

}  // namespace cairn::comm
