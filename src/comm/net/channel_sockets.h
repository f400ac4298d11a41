#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/net/async_stream.h"
#include "comm/net/channel_bundle.h"

namespace cairn::comm {

// The sockets of a ChannelBundle: reads and writes them when they are ready, wakes up for paced links, and looks for stalls.
class PeerChannels {
 public:
  struct Tell {
    std::function<void(const std::string& why)> ended;  // the peer is gone, or all channels to it are
    std::function<void()> heard;                        // bytes of it arrived
  };

  PeerChannels(asio::io_context& io, const base::Clock& clock, int peer, std::vector<Connection> connected, ChannelBundle::Options options,
               FrameSink& sink, Tell tell);

  void start();
  void enqueue(const Frame& frame, const void* data, std::shared_ptr<std::byte[]> owned, std::shared_ptr<Transfer> transfer,
               const Ledger::Message& booking);
  void cancel(const Transfer& transfer) { bundle_.cancel(transfer); }
  void retry();  // a receive was posted: there may be a place now
  bool parked() const { return bundle_.has_unplaced(); }
  void end_writing() { bundle_.end_writing(); }
  bool wants_write() const { return !closed_ && bundle_.wants_write(); }
  void close();
  std::vector<ChannelState> states() const { return bundle_.states(); }
  int plane(int channel) const { return planes_[static_cast<size_t>(channel)]; }

 private:
  struct Armed {
    bool read = false, write = false;  // a wait for the socket is pending
  };
  void act(const std::function<void()>& change);
  void pump();
  void arm_read(int channel);
  void arm_write(int channel);
  void arm_check();

  asio::io_context& io_;
  const base::Clock& clock_;
  std::vector<int> planes_;
  std::vector<asio::ip::tcp::socket> sockets_;
  std::vector<Armed> armed_;
  ChannelBundle bundle_;
  Tell tell_;
  bool busy_ = false, closed_ = false, check_armed_ = false;
};

}  // namespace cairn::comm
