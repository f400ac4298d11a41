// The net transport: ranks are processes. On one machine messages go through shared memory (comm/shm), between machines through TCP with
// TLS 1.3.
//
// There is no progress thread. A waiting rank makes progress itself:
//   1. spin (up to 1 ms): poll shared memory, and the sockets now and then;
//   2. sleep on the sockets. A peer that writes to shared memory sees that this rank is asleep and sends it a `wake` frame.
// A send is written at once where there is room. A message that arrives before its receive is kept, up to early_bytes_max per peer; then
// its sender waits (back-pressure).
//
// A peer is lost when its connection closes without a bye frame, when it announces its own failure, or when its heartbeat stops.
#include "comm/net/transport.h"

#include <algorithm>
#include <cstring>
#include <sched.h>
#include <unistd.h>
#include <utility>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <fmt/format.h>

#include "base/check.h"
#include "base/process.h"
#include "comm/net/net_transport.h"

namespace cairn::comm {

namespace {

constexpr auto kFlushDeadline = std::chrono::seconds(10);          // for outgoing messages when a rank ends
constexpr auto kFarewellDeadline = std::chrono::seconds(2);        // for peers to end too
constexpr auto kFailDeadline = std::chrono::seconds(1);            // to send the reason of a failure
constexpr auto kSpinLimit = std::chrono::microseconds(1000);       // after that a waiting rank sleeps until it is woken
constexpr auto kSocketsEvery = std::chrono::microseconds(100);     // how often a spinning rank polls its sockets
constexpr auto kFarSocketsEvery = std::chrono::microseconds(5);    // the same, where messages of other machines come that way
constexpr auto kWatchEvery = std::chrono::milliseconds(100);       // how often a sleeping rank checks that its peers are alive
constexpr auto kBlockedWatchEvery = std::chrono::milliseconds(1);  // the same, while a peer has no room for more
constexpr auto kKeepCore = std::chrono::microseconds(5);           // without progress; then the core is offered to others
// A usual network between machines: 10 Gbit/s.
constexpr LinkFacts kBetweenMachines{
    .latency = std::chrono::microseconds(60), .overhead = std::chrono::microseconds(8), .bytes_per_s = 1.2e9, .shared_card = true};
constexpr int kSpins = 16;  // polls of shared memory between two reads of the clock

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

NetTransport::NetTransport(NetSetup setup, NetOptions options)
    : setup_(std::move(setup)),
      options_(std::move(options)),
      io_(1),
      guard_(io_.get_executor()),
      inbox_(setup_.rank, done_),
      regions_(done_, [this](int to, const Frame& frame, std::shared_ptr<std::byte[]> payload) {
        const std::byte* data = payload.get();
        send_frame(to, frame, data, std::move(payload), nullptr);
      }) {
  if (options_.links) {
    check(*options_.links, size());
    shaper_.emplace(*options_.links, size(), options_.links_seed);
  }
  std::vector<std::vector<Connection>> connected = connect_peers(setup_, options_);
  early_bytes_->resize(static_cast<size_t>(size()));
  channels_.resize(static_cast<size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) {
    std::vector<Connection>& channels = connected[static_cast<size_t>(rank)];
    const bool one = channels.size() == 1;
    sockets_.emplace_back(io_);
    if (one) sockets_[rank].assign(protocol_of(channels[0].fd), channels[0].fd);
    planes_.push_back(one ? channels[0].plane : 0);
    peers_.emplace_back(rank, one ? std::move(channels[0].stream) : nullptr, options_.message_bytes_max);
    if (channels.size() > 1) add_channels(rank, std::move(channels));
  }
  peers_[setup_.rank].open = false;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == setup_.rank) continue;
    channels_to(rank) ? channels_to(rank)->start() : arm_read(rank);
  }
  std::shared_ptr<SharedSegment> segment;
  const std::vector<int> neighbours = setup_.neighbours();
  if (setup_.segment_fd >= 0) {
    segment = std::make_shared<SharedSegment>(setup_.segment_fd, static_cast<int>(neighbours.size()));
    ::close(setup_.segment_fd);
    if (!options_.links) shared_ = std::make_unique<SharedMemory>(segment, neighbours, rank(), inbox_, owner());
  }
  far_ = static_cast<int>(neighbours.size()) < size();
  start_recorder(segment);
  if (segment || setup_.heartbeat_fd >= 0) liveness_ = std::make_unique<PeerLiveness>(setup_, segment);
}

// In the memory that the agent of this machine reads; a rank that shares none has its own.
void NetTransport::start_recorder(const std::shared_ptr<SharedSegment>& segment) {
  const std::vector<int> neighbours = setup_.neighbours();
  const auto place = static_cast<int>(std::find(neighbours.begin(), neighbours.end(), rank()) - neighbours.begin());
  auto memory = segment ? std::shared_ptr<FlightMemory>(segment, &segment->flight(place)) : make_flight_memory();
  recorder_ = std::make_unique<FlightRecorder>(std::move(memory), clock_, machine_time() - clock_.now(), rank(), size());
  recorder_->set_host(base::host_name());
  for (int peer = 0; shared_ && peer < size(); ++peer) {
    if (link_to(peer)) recorder_->set_in_memory(peer);
  }
}

NetTransport::~NetTransport() {
  leave();
  inbox_.clear();
}

Completion NetTransport::send(int to, const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) {
  CAIRN_CHECK(bytes <= options_.message_bytes_max, "a message of {} bytes, at most {} are allowed", bytes, options_.message_bytes_max);
  auto transfer = make_transfer(NetTransfer::Kind::send, to, envelope);
  transfer->outgoing = true;
  if (SharedLink* link = link_to(to)) {
    if (!peers_[to].open) {
      if (peers_[to].said_bye) done_.fail(transfer, peer_has_left(to, envelope));
    } else {
      link->send(envelope, purpose, data, bytes, transfer, {rank(), to, bytes, purpose, clock_.now(), {}});
    }
  } else {
    send_frame(to, {.kind = Frame::Kind::message, .purpose = purpose, .envelope = envelope, .bytes = bytes}, data, nullptr, transfer);
  }
  return Completion(*this, std::move(transfer));
}

Completion NetTransport::recv(int from, const Envelope& envelope, void* into, int64_t bytes) {
  auto transfer = make_transfer(NetTransfer::Kind::recv, from, envelope);
  transfer->data = into ? into : &nothing_;
  transfer->bytes = bytes;
  return ask(from, std::move(transfer));
}

Completion NetTransport::recv_view(int from, const Envelope& envelope, int64_t bytes) {
  auto transfer = make_transfer(NetTransfer::Kind::recv, from, envelope);
  transfer->viewed = true;
  transfer->bytes = bytes;
  return ask(from, std::move(transfer));
}

Completion NetTransport::expose(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) {
  auto transfer = make_transfer(NetTransfer::Kind::expose, -1, envelope);
  transfer->purpose = purpose;
  transfer->data = const_cast<void*>(data);
  transfer->bytes = bytes;
  regions_.expose(transfer);
  return Completion(*this, std::move(transfer));
}

Completion NetTransport::pull(int peer, const Envelope& envelope, int64_t offset, void* into, int64_t bytes, PullMode how, Dtype dtype) {
  auto transfer = make_transfer(NetTransfer::Kind::pull, peer, envelope);
  transfer->data = into ? into : &nothing_;
  transfer->bytes = bytes;
  transfer->mode = how;
  transfer->dtype = dtype;
  regions_.pull(transfer, offset);
  return Completion(*this, std::move(transfer));
}

LinkFacts NetTransport::link_facts(const std::vector<int>& ranks) const {
  if (options_.links) return facts_of(*options_.links, ranks);
  const int machine = setup_.addresses.empty() ? 0 : setup_.addresses[static_cast<size_t>(ranks.front())].machine;
  const auto here = [&](int rank) { return setup_.addresses.empty() || setup_.addresses[static_cast<size_t>(rank)].machine == machine; };
  return std::all_of(ranks.begin(), ranks.end(), here) ? LinkFacts() : kBetweenMachines;
}

ShmGroup* NetTransport::shm_group(const std::vector<int>& ranks, uint64_t group) {
  return shared_ ? shared_->groups().of(ranks, group) : nullptr;
}

Completion NetTransport::timer(Nanoseconds at) {
  auto transfer = make_transfer(NetTransfer::Kind::timer, -1, {});
  const auto timer = std::make_shared<asio::steady_timer>(io_, at - clock_.now());
  transfer->timer = timer;
  timer->async_wait([this, waiting = std::weak_ptr<NetTransfer>(transfer)](asio::error_code error) {
    if (const auto one = waiting.lock(); one && !error) done_.finish(one);
  });
  return Completion(*this, std::move(transfer));
}

void NetTransport::cancel(Transfer& transfer) {
  if (auto* wait = dynamic_cast<ShmWait*>(&transfer)) return shared_->groups().forget(*wait);
  auto& one = static_cast<NetTransfer&>(transfer);
  one.data = nullptr;
  one.done = true;
  one.timer.reset();
  if (one.kind == NetTransfer::Kind::send && peers_[one.peer].open) {
    if (SharedLink* link = link_to(one.peer))
      link->cancel(one);
    else if (PeerChannels* channels = channels_to(one.peer))
      channels->cancel(one);
    else
      peers_[one.peer].cancel(one);
  }
  regions_.forget(one);
  if (one.kind == NetTransfer::Kind::recv) inbox_.forget(one);
}

// Polls without giving up the core: most waits are shorter than a sleep.
bool NetTransport::spin(const std::function<bool()>& done) {
  if (!shared_) return false;
  const Nanoseconds begun = clock_.now();
  Nanoseconds sockets_at = begun, moved_at = begun;
  while (true) {
    const bool moved = progress_shared();
    if (moved || !done_.empty()) {
      done_.run();
      if (done()) return true;
    }
    for (int i = 0; i < (shared_->oversubscribed() ? 1 : kSpins) && !shared_->waits(); ++i) relax();
    if (shared_->waits()) continue;
    const Nanoseconds now = clock_.now();
    if (moved) moved_at = now;
    if (now - begun > kSpinLimit) return false;
    if (now - sockets_at > (far_ ? Nanoseconds(kFarSocketsEvery) : Nanoseconds(kSocketsEvery))) {
      sockets_at = now;
      if (io_.poll() > 0 && (done_.run(), done())) return true;
    }
    if (shared_->oversubscribed() || now - moved_at > kKeepCore) ::sched_yield();
  }
}

bool NetTransport::drive(const std::function<bool()>& done, Nanoseconds until, const std::string&) {
  while (true) {
    progress_shared();
    done_.run();
    if (done()) return true;
    const Nanoseconds now = clock_.now();
    if (now >= until) return false;
    check_liveness(now);
    if (done_.empty()) rest(until - now);
    io_.poll();
  }
}

void NetTransport::poll() {
  progress_shared();
  io_.poll();
  done_.run();
}

void NetTransport::publish_operation(const Envelope& starting) {
  if (liveness_) liveness_->publish_operation(starting);
}

void NetTransport::fail(const std::string& reason, int culprit) {
  if (std::exchange(failed_, true)) return;
  const auto bytes = std::min(static_cast<int64_t>(reason.size()), kReasonBytesMax);
  const auto text = std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
  std::memcpy(text.get(), reason.data(), static_cast<size_t>(bytes));
  for (NetPeer& peer : peers_) {
    if (!peer.open) continue;
    send_frame(peer.rank(), {.kind = Frame::Kind::failing, .bytes = bytes, .number = static_cast<uint64_t>(culprit)}, text.get(), text,
               nullptr);
  }
  flush(kFailDeadline);
}

std::shared_ptr<void> NetTransport::allocate(int64_t bytes) {
  if (auto piece = shared_ ? shared_->allocate(bytes) : nullptr) return piece;
  return allocate_plain(bytes);
}

Ledger& NetTransport::ledger() {
  for (int peer = 0; peer < size(); ++peer) {
    const PeerChannels* channels = channels_to(peer);
    if (!channels) continue;
    const std::vector<ChannelState> states = channels->states();
    for (size_t c = 0; c < states.size(); ++c) {
      const ChannelState& one = states[c];
      ledger_.set_channel(rank(), peer, static_cast<int>(c),
                          {channels->plane(static_cast<int>(c)), one.bytes, one.pieces, one.moved, one.bytes_per_s, one.lost_because});
    }
  }
  return ledger_;
}

std::shared_ptr<NetTransfer> NetTransport::make_transfer(NetTransfer::Kind kind, int peer, const Envelope& envelope) {
  auto transfer = std::make_shared<NetTransfer>();
  transfer->kind = kind;
  transfer->peer = peer;
  transfer->envelope = envelope;
  return transfer;
}

Completion NetTransport::ask(int from, std::shared_ptr<NetTransfer> transfer) {
  inbox_.ask(transfer);
  if (SharedLink* link = link_to(from)) link->unpark();
  if (PeerChannels* channels = channels_to(from); channels && peers_[from].open && channels->parked()) channels->retry();
  if (peers_[from].parked()) asio::post(io_, [this, from] { readable(from); });  // there may be a place now
  return Completion(*this, std::move(transfer));
}

bool NetTransport::progress_shared() {
  bool moved = false;
  for (int peer = 0; shared_ && peer < size(); ++peer) moved |= link_to(peer) && progress_shared(peer);
  return (shared_ && shared_->groups().progress()) || moved;
}

bool NetTransport::progress_shared(int peer) {
  try {
    SharedLink* link = link_to(peer);
    return peers_[peer].open && link && link->progress();
  } catch (const Error& error) {
    end(peers_[peer], error.sentence());
    return true;
  }
}

// Sleeps until something arrives: on a socket, or through shared memory, whose sender wakes this rank by a frame.
void NetTransport::rest(Nanoseconds limit) {
  if (!shared_) {
    io_.run_one_for(liveness_ ? std::min(limit, Nanoseconds(kWatchEvery)) : limit);
    return;
  }
  if (shared_->blocked()) limit = std::min<Nanoseconds>(limit, kBlockedWatchEvery);
  if (shared_->fall_asleep()) io_.run_one_for(std::min<Nanoseconds>(limit, kWatchEvery));
  shared_->wake_up();
}

// A peer whose heartbeat counter stands still is stopped or cut off.
void NetTransport::check_liveness(Nanoseconds now) {
  if (!liveness_ || !liveness_->due(now)) return;
  liveness_->begin_look(now);
  for (const NetPeer& peer : peers_) {
    if (!peer.open || peer.said_bye) continue;
    if (const auto silent = liveness_->stopped(peer.rank(), now)) {
      const bool far = setup_.addresses[static_cast<size_t>(peer.rank())].machine != setup_.addresses[static_cast<size_t>(rank())].machine;
      lose(peer.rank(),
           far ? fmt::format("no sign of life for {:.1f} s: it stands still, or the network to its machine is cut", base::seconds(*silent))
               : fmt::format("its process stands still, without a sign of life for {:.1f} s", base::seconds(*silent)));
    }
  }
}

void NetTransport::lose(int peer, const std::string& why) {
  if (!is_lost(peer)) lost_peers_.push_back({peer, peer, why});
}

bool NetTransport::is_lost(int peer) const {
  return std::any_of(lost_peers_.begin(), lost_peers_.end(), [&](const LostPeer& loss) { return loss.rank == peer; });
}

template <typename Pending>
void NetTransport::run_while(Pending pending, Nanoseconds limit) {
  const Nanoseconds until = clock_.now() + limit;
  while (std::any_of(peers_.begin(), peers_.end(), pending) && clock_.now() < until) {
    if (!progress_shared()) rest(until - clock_.now());
  }
}

// A lost peer is not waited for: one that stands still takes nothing.
void NetTransport::flush(Nanoseconds limit) {
  run_while(
      [this](const NetPeer& peer) {
        const SharedLink* link = link_to(peer.rank());
        const PeerChannels* channels = channels_to(peer.rank());
        const bool unsent = peer.wants_write() || (channels && channels->wants_write()) || (link && !link->all_sent());
        return peer.open && !is_lost(peer.rank()) && unsent;
      },
      limit);
}

// Ends the connections without losing a sent message: writes everything, says bye, waits a moment until the peers end too.
void NetTransport::leave() noexcept try {
  if (!failed_) {
    flush(kFlushDeadline);
    for (NetPeer& peer : peers_) {
      if (peer.open) send_frame(peer.rank(), {.kind = Frame::Kind::bye}, nullptr, nullptr, nullptr);
    }
    flush(kFlushDeadline);
    for (NetPeer& peer : peers_) {
      if (!peer.open) continue;
      PeerChannels* channels = channels_to(peer.rank());
      channels ? channels->end_writing() : peer.end_writing();
    }
    run_while([](const NetPeer& peer) { return peer.open && !peer.parked(); }, kFarewellDeadline);
  }
} catch (...) {  // a destructor never throws; the sockets are closed all the same
}

std::unique_ptr<Transport> make_net_transport(NetSetup setup, NetOptions options) {
  CAIRN_CHECK(options.channels >= 1 && options.channels <= kChannelsMost, "{} channels, at most {}", options.channels, kChannelsMost);
  CAIRN_CHECK(setup.size >= 1 && setup.rank >= 0 && setup.rank < setup.size, "rank {} of {}", setup.rank, setup.size);
  CAIRN_CHECK(static_cast<int>(setup.addresses.size()) == setup.size || setup.size == 1, "{} addresses for {} ranks",
              setup.addresses.size(), setup.size);
  return std::make_unique<NetTransport>(std::move(setup), std::move(options));
}

}  // namespace cairn::comm
