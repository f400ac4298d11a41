// How the net transport writes frames to sockets and reads them: a frame is a fixed header (frame.h) and a payload.
//
// Reading: for each header, place() names the memory of the payload: the buffer of the receive that waits for it, or memory of our own for
// an unexpected message. It names none while the peer's budget of unexpected bytes is used up; then the socket is not read until the next
// receive (the peer is parked).
#include <algorithm>
#include <utility>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include "base/error.h"
#include "comm/net/net_transport.h"

namespace cairn::comm {

using asio::ip::tcp;

bool NetTransport::may_keep(int peer, int64_t bytes) const {
  const int64_t waiting = early_bytes_->at(static_cast<size_t>(peer));
  return bytes <= options_.early_bytes_max && (waiting == 0 || waiting + bytes <= options_.early_bytes_max);
}

// Memory for a message that no receive waits for yet; counted until it is delivered. A half-read message may outlive the transport, so the
// memory holds on to the counts.
std::shared_ptr<std::byte[]> NetTransport::early_memory(int peer, int64_t bytes) {
  early_bytes_->at(static_cast<size_t>(peer)) += bytes;
  return {new std::byte[static_cast<size_t>(std::max<int64_t>(bytes, 1))], [counts = early_bytes_, peer, bytes](const std::byte* memory) {
            counts->at(static_cast<size_t>(peer)) -= bytes;
            delete[] memory;
          }};
}

void NetTransport::add_channels(int peer, std::vector<Connection> connected) {
  std::vector<int> planes;
  for (const Connection& one : connected) planes.push_back(one.plane);
  ChannelBundle::Options options{.message_bytes_max = options_.message_bytes_max, .stall = options_.channel_stall};
  if (shaper_)
    options.pace = [this, peer, planes](int channel, int64_t bytes, Nanoseconds) {
      return pace_of(peer, bytes, planes[static_cast<size_t>(channel)]);
    };
  PeerChannels::Tell tell{[this, peer](const std::string& why) { end(peers_[peer], why); },
                          [this, peer] {
                            if (liveness_) liveness_->heard(peer);
                          }};
  FrameSink& sink = *this;
  channels_[static_cast<size_t>(peer)] =
      std::make_unique<PeerChannels>(io_, clock_, peer, std::move(connected), std::move(options), sink, std::move(tell));
}

// Writes at once what the socket accepts, the rest when it becomes writable.
void NetTransport::send_frame(int to, const Frame& frame, const void* data, std::shared_ptr<std::byte[]> owned,
                              std::shared_ptr<Transfer> transfer) {
  NetPeer& peer = peers_[to];
  if (!peer.open) {
    if (transfer && peer.said_bye) done_.fail(transfer, peer_has_left(to, frame.envelope));
    return;  // a lost peer fails the whole group, by lost_peers()
  }
  const bool idle = !peer.wants_write();
  const Ledger::Message booking{rank(), to, frame.payload_bytes(), frame.purpose, clock_.now(), {}};
  if (PeerChannels* channels = channels_to(to)) return channels->enqueue(frame, data, std::move(owned), std::move(transfer), booking);
  const int64_t paced = frame.payload_bytes() == 0 ? 0 : kFrameBytes + frame.payload_bytes();
  peer.enqueue(frame, data, std::move(owned), std::move(transfer), booking, pace_of(to, paced, planes_[static_cast<size_t>(to)]));
  if (idle) writable(to);
}

// On a shaped link the last byte leaves when the model says, the others before it at the link's bandwidth.
Pace NetTransport::pace_of(int to, int64_t bytes, int plane) {
  constexpr double kHardly = 1e-9;  // bytes per ns, on a plane that passes nothing
  if (!shaper_) return {};
  const Nanoseconds now = clock_.now();
  const double bytes_per_ns = shaper_->bytes_per_s(rank(), to, now, plane) / 1e9;
  if (bytes_per_ns <= 0) return {now + std::chrono::hours(24), kHardly};
  if (bytes == 0) return {};
  const Nanoseconds arrives = shaper_->send(rank(), to, bytes, now, plane).arrives;
  return {arrives - Nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_ns)), bytes_per_ns};
}

void NetTransport::wake_when_released(int peer) {
  const auto timer = std::make_shared<asio::steady_timer>(io_, *peers_[peer].held_until() - clock_.now());
  peers_[peer].write_armed = true;
  timer->async_wait([this, peer, timer](asio::error_code error) {
    peers_[peer].write_armed = false;
    if (!error) writable(peer);
  });
}

void NetTransport::arm_read(int peer) {
  if (std::exchange(peers_[peer].read_armed, true)) return;
  if (peers_[peer].has_buffered()) {  // the socket does not signal it
    asio::post(io_, [this, peer] {
      peers_[peer].read_armed = false;
      readable(peer);
    });
    return;
  }
  sockets_[peer].async_wait(tcp::socket::wait_read, [this, peer](asio::error_code error) {
    peers_[peer].read_armed = false;
    if (!error) readable(peer);
  });
}

void NetTransport::arm_write(int peer) {
  if (std::exchange(peers_[peer].write_armed, true)) return;
  sockets_[peer].async_wait(tcp::socket::wait_write, [this, peer](asio::error_code error) {
    peers_[peer].write_armed = false;
    if (!error) writable(peer);
  });
}

void NetTransport::readable(int rank) {
  NetPeer& peer = peers_[rank];
  if (!peer.open) return;
  try {
    const uint64_t before = peer.arrivals();
    peer.read(*this);
    if (liveness_ && peer.arrivals() != before) liveness_->heard(rank);
    if (peer.open && !peer.parked()) arm_read(rank);
  } catch (const Error& error) {
    end(peer, error.sentence());
  }
}

void NetTransport::writable(int rank) {
  NetPeer& peer = peers_[rank];
  if (!peer.open) return;
  try {
    if (peer.write_armed) return;
    peer.write(*this, clock_.now());
    if (!peer.wants_write()) return;
    peer.held_until() ? wake_when_released(rank) : arm_write(rank);
  } catch (const Error& error) {
    // Its last frames are still unread; one may carry the reason.
    if (peer.open) readable(rank);
    if (peer.open) end(peer, error.sentence());
  }
}

// The peer closed its connection. After a bye it has left in good order, else it is lost. What it wrote before is still read.
void NetTransport::end(NetPeer& peer, const std::string& reason) {
  if (SharedLink* link = link_to(peer.rank())) {
    try {
      while (link->progress()) {
      }
    } catch (const Error&) {  // it died while it wrote
    }
    shared_->groups().progress();
  }
  peer.open = false;
  asio::error_code ignored;
  sockets_[peer.rank()].close(ignored);
  if (PeerChannels* channels = channels_to(peer.rank())) channels->close();
  if (!peer.said_bye) return lose(peer.rank(), reason);
  if (!in_nic(peer.rank())) inbox_.close(peer.rank());
  if (shared_) shared_->groups().close(peer.rank());
}

std::optional<PayloadTarget> NetTransport::place(int from, const Frame& frame) {
  if (frame.kind == Frame::Kind::reply) {
    return regions_.place(frame);
  } else if (frame.kind == Frame::Kind::message) {
    Inbox::Found found = inbox_.wanted(from, frame.envelope, frame.bytes);
    if (found.refused) return PayloadTarget{};
    if (found.receive && !found.receive->viewed) return PayloadTarget{std::move(found.receive), nullptr};
    if (!found.receive && !may_keep(from, frame.bytes)) return std::nullopt;
    return PayloadTarget{std::move(found.receive), early_memory(from, frame.bytes)};
  }
  return PayloadTarget{nullptr, std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(frame.payload_bytes()))};
}

void NetTransport::on_payload(int from, const Frame& frame, PayloadTarget target) {
  switch (frame.kind) {
    case Frame::Kind::message:
      shaper_ ? through_nic(from, frame, std::move(target)) : deliver(from, frame, std::move(target));
      break;
    case Frame::Kind::reply:
      regions_.on_payload(frame, target);
      break;
    case Frame::Kind::pull:
      regions_.asked(from, frame);
      break;
    case Frame::Kind::failing: {
      progress_shared(from);  // earlier messages count
      const std::string reason(reinterpret_cast<const char*>(target.owned.get()), static_cast<size_t>(frame.bytes));
      const bool sensible = frame.number < static_cast<uint64_t>(size());
      lost_peers_.push_back({from, sensible ? static_cast<int>(frame.number) : from, reason});
      break;
    }
    case Frame::Kind::bye:
      peers_[from].said_bye = true;
      break;
    case Frame::Kind::wake:
      break;
  }
}

// On shaped links with contention = per_nic: this rank's NIC may still be busy with messages of other ranks.
void NetTransport::through_nic(int from, const Frame& frame, PayloadTarget target) {
  const Nanoseconds now = clock_.now(), at = shaper_->receive(from, rank(), kFrameBytes + frame.bytes, now);
  if (at <= now) return deliver(from, frame, std::move(target));
  in_nic_.push_back({at, from, frame, std::move(target)});
  const auto timer = std::make_shared<asio::steady_timer>(io_, at - now);
  timer->async_wait([this, timer](asio::error_code error) {
    if (!error) leave_nic();
  });
}

bool NetTransport::in_nic(int from) const {
  return std::any_of(in_nic_.begin(), in_nic_.end(), [&](const InNic& one) { return one.from == from; });
}

void NetTransport::leave_nic() {
  while (!in_nic_.empty() && in_nic_.front().at <= clock_.now()) {
    InNic one = std::move(in_nic_.front());
    in_nic_.pop_front();
    deliver(one.from, one.frame, std::move(one.target));
    if (peers_[one.from].said_bye && !peers_[one.from].open && !in_nic(one.from)) inbox_.close(one.from);
  }
}

void NetTransport::deliver(int from, const Frame& frame, PayloadTarget target) {
  if (!target.owned) {
    if (target.transfer && target.transfer->data) done_.finish(target.transfer);
  } else if (target.transfer) {  // asked for as a view
    target.transfer->view = target.owned.get();
    target.transfer->held = std::move(target.owned);
    if (!target.transfer->done) done_.finish(target.transfer);
  } else {  // unexpected; a receive may have been posted while it arrived
    const std::byte* data = target.owned.get();
    inbox_.arrive({from, frame.envelope, frame.bytes, data, std::move(target.owned)});
  }
}

void NetTransport::written(const std::shared_ptr<Transfer>& transfer, const Ledger::Message& booking) {
  Ledger::Message message = booking;
  message.ended = clock_.now();
  ledger_.book(message);
  if (transfer) done_.finish(transfer);
}

}  // namespace cairn::comm
