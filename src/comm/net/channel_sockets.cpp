#include "comm/net/channel_sockets.h"

#include <algorithm>
#include <utility>

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include "base/error.h"

namespace cairn::comm {
namespace {

using asio::ip::tcp;

constexpr auto kCheckEvery = std::chrono::milliseconds(100);

std::vector<std::unique_ptr<ByteStream>> streams_of(std::vector<Connection>& connected) {
  std::vector<std::unique_ptr<ByteStream>> streams;
  for (Connection& one : connected) streams.push_back(std::move(one.stream));
  return streams;
}

}  // namespace

PeerChannels::PeerChannels(asio::io_context& io, const base::Clock& clock, int peer, std::vector<Connection> connected,
                           ChannelBundle::Options options, FrameSink& sink, Tell tell)
    : io_(io), clock_(clock), bundle_(peer, streams_of(connected), std::move(options), sink), tell_(std::move(tell)) {
  for (const Connection& one : connected) {
    sockets_.emplace_back(io);
    sockets_.back().assign(protocol_of(one.fd), one.fd);
    armed_.emplace_back();
    planes_.push_back(one.plane);
  }
}

void PeerChannels::start() {
  for (int channel = 0; channel < bundle_.size(); ++channel) arm_read(channel);
}

void PeerChannels::enqueue(const Frame& frame, const void* data, std::shared_ptr<std::byte[]> owned, std::shared_ptr<Transfer> transfer,
                           const Ledger::Message& booking) {
  act([&] { bundle_.enqueue(frame, data, std::move(owned), std::move(transfer), booking, clock_.now()); });
}

void PeerChannels::retry() {
  asio::post(io_, [this] { act([this] { bundle_.retry(clock_.now()); }); });
}

// What is called while frames are delivered only notes what it wants; the outer call writes.
void PeerChannels::act(const std::function<void()>& change) {
  if (closed_) return;
  if (busy_) return change();
  busy_ = true;
  std::string why;
  try {
    change();
    pump();
  } catch (const Error& error) {
    why = error.sentence();
  }
  busy_ = false;
  if (!why.empty() && !closed_) {
    close();
    tell_.ended(why);
  }
}

void PeerChannels::pump() {
  constexpr int kPasses = 2;  // a channel that is lost while it is written gives its pieces to others
  for (int pass = 0; pass < kPasses; ++pass) {
    for (int channel = 0; channel < bundle_.size() && !closed_; ++channel) {
      if (!armed_[static_cast<size_t>(channel)].write) bundle_.write(channel, clock_.now());
      if (!bundle_.is_open(channel)) {
        asio::error_code ignored;
        sockets_[static_cast<size_t>(channel)].close(ignored);
      } else if (bundle_.wants_write(channel)) {
        arm_write(channel);
      }
    }
  }
  if (bundle_.unanswered()) arm_check();
}

void PeerChannels::arm_read(int channel) {
  if (closed_ || !bundle_.is_open(channel) || std::exchange(armed_[static_cast<size_t>(channel)].read, true)) return;
  const auto read = [this, channel](asio::error_code error) {
    armed_[static_cast<size_t>(channel)].read = false;
    if (error) return;
    act([&] {
      const uint64_t before = bundle_.arrivals();
      bundle_.read(channel, clock_.now());
      if (bundle_.arrivals() != before) tell_.heard();
    });
    arm_read(channel);
  };
  if (bundle_.has_buffered(channel)) {  // the socket does not signal it
    asio::post(io_, [read] { read({}); });
  } else {
    sockets_[static_cast<size_t>(channel)].async_wait(tcp::socket::wait_read, read);
  }
}

void PeerChannels::arm_write(int channel) {
  if (std::exchange(armed_[static_cast<size_t>(channel)].write, true)) return;
  const auto write = [this, channel](asio::error_code error) {
    armed_[static_cast<size_t>(channel)].write = false;
    if (!error) act([] {});
  };
  if (const auto held = bundle_.held_until(channel)) {
    const auto timer = std::make_shared<asio::steady_timer>(io_, *held - clock_.now());
    timer->async_wait([write, timer](asio::error_code error) { write(error); });
  } else {
    sockets_[static_cast<size_t>(channel)].async_wait(tcp::socket::wait_write, write);
  }
}

void PeerChannels::arm_check() {
  if (std::exchange(check_armed_, true)) return;
  const auto timer = std::make_shared<asio::steady_timer>(io_, kCheckEvery);
  timer->async_wait([this, timer](asio::error_code error) {
    check_armed_ = false;
    if (!error) act([this] { bundle_.check(clock_.now()); });
  });
}

void PeerChannels::close() {
  closed_ = true;
  asio::error_code ignored;
  for (tcp::socket& one : sockets_) one.close(ignored);
}

}  // namespace cairn::comm
