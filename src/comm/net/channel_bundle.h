#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/net/channel_record.h"
#include "comm/net/path_planner.h"
#include "comm/net/peer.h"

namespace cairn::comm {

// What one channel to a peer has carried, for the ledger and for people.
struct ChannelState {
  int64_t bytes = 0;       // of payload, written to its socket
  int64_t pieces = 0;      // likewise
  int64_t moved = 0;       // bytes that were taken from it when it was lost, and sent again on others
  double bytes_per_s = 0;  // measured; 0: not yet
  double share = 0;        // of what is sent next
  bool open = true;
  std::string lost_because = {};
};

// The frames to and from one peer over several connections (channels). A frame is cut into pieces; each goes to the channel that will have
// sent it first by the measured rates. The receiver puts the pieces together and delivers each frame once. A channel that closes or stalls
// is given up; what it has not acknowledged is sent on the others. Like NetPeer it does no waiting: the caller watches the sockets.
//
// All calls throw Error (lost_peer) when the last channel is lost, or where the peer sends what it must not.
class ChannelBundle {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  struct Options {
    int64_t message_bytes_max = int64_t{1} << 36;
    Nanoseconds stall = std::chrono::seconds(3);  // without progress, while another channel answers: it is given up
    std::function<Pace(int channel, int64_t bytes, Nanoseconds now)> pace = {};  // on shaped links
  };

  ChannelBundle(int peer, std::vector<std::unique_ptr<ByteStream>> streams, Options options, FrameSink& sink);

  void enqueue(const Frame& frame, const void* data, std::shared_ptr<std::byte[]> owned, std::shared_ptr<Transfer> transfer,
               const Ledger::Message& booking, Nanoseconds now);
  // The memory of an unsent message is not read any more; what was begun is copied and sent to its end.
  void cancel(const Transfer& transfer);
  void read(int channel, Nanoseconds now);
  void write(int channel, Nanoseconds now);
  // Gives up channels that stall. To be called every 0.1 s while unanswered() holds.
  void check(Nanoseconds now);
  // A receive was posted: there may be a place now for what arrived too early.
  void retry(Nanoseconds now);
  void end_writing();

  int size() const { return static_cast<int>(channels_.size()); }
  bool is_open(int channel) const { return at(channel).open; }
  bool wants_write(int channel) const;
  bool wants_write() const;
  bool unanswered() const;
  bool has_unplaced() const { return unplaced_ > 0; }  // something waits for a place
  bool has_buffered(int channel) const { return at(channel).open && at(channel).stream->has_buffered(); }
  std::optional<Nanoseconds> held_until(int channel) const { return at(channel).held_until; }  // by the pace
  uint64_t arrivals() const { return arrivals_; }                                              // grows whenever bytes of the peer arrive
  std::vector<ChannelState> states() const;

 private:
  struct OutFrame {
    std::array<std::byte, kFrameBytes> header;
    const std::byte* data = nullptr;
    int64_t bytes = 0;
    std::shared_ptr<std::byte[]> owned;
    std::shared_ptr<Transfer> transfer;
    Ledger::Message booking;
    uint64_t number = 0;            // 0: no piece was cut yet
    int64_t cut = 0, answered = 0;  // bytes given to channels, acknowledged
    bool told = false;              // its sender may use the memory again
  };
  struct Piece {
    std::shared_ptr<OutFrame> frame;  // null: a probe
    int64_t offset = 0, bytes = 0;
    std::array<std::byte, kRecordHeaderBytes + kFrameBytes> header;
    int64_t header_bytes = 0;
    int64_t sent = 0;  // header included
    Pace pace = {};
    Nanoseconds given{};
    int64_t size() const { return header_bytes + bytes; }
  };
  // A frame that arrives in pieces.
  struct Assembly {
    Frame frame;
    std::array<std::byte, kFrameBytes> header;
    bool placed = false;
    bool complete = false;
    PayloadTarget target = {};
    int64_t received = 0;
    std::map<int64_t, int64_t> ranges = {};  // offset -> bytes, of complete pieces
    struct Early {
      int64_t offset, bytes;
      std::shared_ptr<std::byte[]> memory;
    };
    std::vector<Early> early = {};  // pieces that have no place yet
    std::byte* destination() const;
  };
  struct Channel {
    std::unique_ptr<ByteStream> stream;
    bool open = true;
    bool ended = false;  // by the peer, in good order
    ChannelState state = {};
    // Sending.
    std::deque<std::shared_ptr<Piece>> queue = {};    // not completely written
    std::deque<std::shared_ptr<Piece>> unacked = {};  // in that order, those of the queue included
    uint64_t acked = 0;
    int64_t in_flight = 0;  // bytes of `unacked`
    Nanoseconds waiting_since{}, answered_at{};
    Nanoseconds least_delay = Nanoseconds::max();
    Nanoseconds epoch{};  // the rate is measured from here
    int64_t epoch_bytes = 0;
    std::array<std::byte, kRecordHeaderBytes> control = {};
    int64_t control_left = 0;
    bool ack_due = false;
    std::deque<int> losses_to_tell = {};
    std::optional<Nanoseconds> held_until = {};
    // Receiving.
    std::vector<std::byte> buffer = {};
    int64_t begin = 0, end = 0;
    bool in_piece = false;
    ChannelRecord record = {};                // the piece that arrives
    std::shared_ptr<Assembly> into = {};      // null: it is dropped
    std::shared_ptr<std::byte[]> early = {};  // its memory where it has no place yet
    int64_t received = 0;
    uint64_t arrived = 0;  // pieces and probes
  };

  Channel& at(int channel) { return channels_[static_cast<size_t>(channel)]; }
  const Channel& at(int channel) const { return channels_[static_cast<size_t>(channel)]; }

  // Sending (channel_bundle.cpp).
  void assign(Nanoseconds now);
  int64_t piece_bytes(int channel) const;
  int64_t window(int channel) const;
  int best_channel() const;
  void give(int channel, std::shared_ptr<Piece> piece, Nanoseconds now);
  std::shared_ptr<Piece> next_piece(int channel);
  bool write_control(Channel& one, Nanoseconds now, int channel);
  void written(Channel& one, const Piece& piece);
  void tell(OutFrame& frame);
  void answered(int channel, const ChannelRecord& ack, Nanoseconds now);
  void sample(int channel, Nanoseconds now);
  void lose(int channel, const std::string& why, bool by_peer, Nanoseconds now);
  void throw_if_lost();

  // Receiving (channel_arrivals.cpp).
  bool receive_some(int channel, Nanoseconds now);
  bool begin_record(int channel, Nanoseconds now);
  void begin_piece(Channel& one, const ChannelRecord& record);
  void finish_piece(Channel& one);
  bool place(Assembly& assembly);
  void deliver(uint64_t number, const std::shared_ptr<Assembly>& assembly);
  void mark_done(uint64_t number);
  bool is_done(uint64_t number) const { return number <= done_to_ || done_.contains(number); }

  int peer_;
  Options options_;
  FrameSink& sink_;
  std::vector<Channel> channels_;
  RateSplit split_;
  std::deque<std::shared_ptr<OutFrame>> pending_;
  std::deque<std::shared_ptr<Piece>> again_;  // of lost channels
  std::unordered_map<const Transfer*, std::shared_ptr<OutFrame>> by_transfer_;
  uint64_t last_number_ = 0;
  int64_t early_at_peer_ = 0;
  Nanoseconds checked_at_{};
  std::optional<std::string> lost_;  // the last channel is gone

  std::map<uint64_t, std::shared_ptr<Assembly>> arriving_;
  uint64_t done_to_ = 0;
  std::set<uint64_t> done_;                                // above done_to_
  std::map<uint64_t, std::shared_ptr<Assembly>> in_turn_;  // complete, but to be delivered after all before them
  int64_t early_bytes_ = 0;
  int unplaced_ = 0;
  uint64_t arrivals_ = 0;
  std::vector<std::byte> scratch_;
};

}  // namespace cairn::comm
