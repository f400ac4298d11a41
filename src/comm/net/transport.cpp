#include "comm/net/transport.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <fmt/format.h>

#include "base/check.h"
#include "comm/net/async_stream.h"
#include "comm/net/connect.h"
#include "comm/net/liveness.h"
#include "comm/net/peer.h"
#include "comm/net/regions.h"
#include "comm/shm/shared_memory.h"

namespace cairn::comm {
namespace {

using asio::ip::tcp;
using Nanoseconds = std::chrono::nanoseconds;

constexpr auto kFlushDeadline = std::chrono::seconds(10);           // for messages still to go when a rank ends
constexpr auto kFarewellDeadline = std::chrono::seconds(2);         // for peers to end too
constexpr auto kFailDeadline = std::chrono::seconds(1);             // to tell the others why
constexpr auto kSpinLimit = std::chrono::microseconds(1000);        // then a waiting rank sleeps until it is woken
constexpr auto kSocketsEvery = std::chrono::microseconds(100);      // how often one that does not sleep looks at its sockets
constexpr auto kFarSocketsEvery = std::chrono::microseconds(5);     // where messages come that way
constexpr auto kGlanceEvery = std::chrono::milliseconds(100);       // how often one that sleeps looks at the others' pulses
constexpr auto kBlockedGlanceEvery = std::chrono::milliseconds(1);  // one whose peer has no room for more
constexpr auto kKeepCore = std::chrono::microseconds(5);            // without a message, before others are offered this rank's core
// What a usual network between machines is like: 10 Gbit/s.
constexpr LinkFacts kBetweenMachines{
    .latency = std::chrono::microseconds(60), .overhead = std::chrono::microseconds(8), .bytes_per_s = 1.2e9};
constexpr int kSpins = 16;  // at the rings between two looks at the clock

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class NetTransport final : public Transport, private FrameSink, private LinkOwner {
 public:
  NetTransport(NetSetup setup, NetOptions options)
      : setup_(std::move(setup)),
        options_(options),
        io_(1),
        guard_(io_.get_executor()),
        inbox_(setup_.rank, done_),
        regions_(done_, [this](int to, const Frame& frame, std::shared_ptr<std::byte[]> payload) {
          const std::byte* data = payload.get();
          send_frame(to, frame, data, std::move(payload), nullptr);
        }) {
    std::vector<Connection> connected = connect_peers(setup_, options_);
    early_bytes_->resize(static_cast<size_t>(size()));
    for (int rank = 0; rank < size(); ++rank) {
      Connection& one = connected[static_cast<size_t>(rank)];
      sockets_.emplace_back(io_);
      if (one.fd >= 0) sockets_[rank].assign(protocol_of(one.fd), one.fd);
      peers_.emplace_back(rank, std::move(one.stream), options_.message_bytes_max);
    }
    peers_[setup_.rank].open = false;
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != setup_.rank) arm_read(rank);
    }
    std::shared_ptr<SharedSegment> segment;
    const std::vector<int> neighbours = setup_.neighbours();
    if (setup_.segment_fd >= 0) {
      segment = std::make_shared<SharedSegment>(setup_.segment_fd, static_cast<int>(neighbours.size()));
      ::close(setup_.segment_fd);
      if (!options_.links) shared_ = std::make_unique<SharedMemory>(segment, neighbours, rank(), inbox_, owner());
    }
    if (options_.links) {
      check(*options_.links, size());
      shaper_.emplace(*options_.links, size(), options_.links_seed);
    }
    far_ = static_cast<int>(neighbours.size()) < size();
    if (segment || setup_.heartbeat_fd >= 0) liveness_ = std::make_unique<PeerLiveness>(setup_, segment);
  }

  ~NetTransport() override {
    leave();
    inbox_.clear();
  }

  int rank() const override { return setup_.rank; }
  int size() const override { return setup_.size; }

  Completion send(int to, const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override {
    CAIRN_CHECK(bytes <= options_.message_bytes_max, "a message of {} bytes, at most {} are allowed", bytes, options_.message_bytes_max);
    auto transfer = made(NetTransfer::Kind::send, to, envelope);
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

  Completion recv(int from, const Envelope& envelope, void* into, int64_t bytes) override {
    auto transfer = made(NetTransfer::Kind::recv, from, envelope);
    transfer->data = into ? into : &nothing_;
    transfer->bytes = bytes;
    return ask(from, std::move(transfer));
  }

  Completion recv_view(int from, const Envelope& envelope, int64_t bytes) override {
    auto transfer = made(NetTransfer::Kind::recv, from, envelope);
    transfer->viewed = true;
    transfer->bytes = bytes;
    return ask(from, std::move(transfer));
  }

  Completion expose(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override {
    auto transfer = made(NetTransfer::Kind::expose, -1, envelope);
    transfer->purpose = purpose;
    transfer->data = const_cast<void*>(data);
    transfer->bytes = bytes;
    regions_.expose(transfer);
    return Completion(*this, std::move(transfer));
  }

  Completion pull(int peer, const Envelope& envelope, int64_t offset, void* into, int64_t bytes, PullMode how, Dtype dtype) override {
    auto transfer = made(NetTransfer::Kind::pull, peer, envelope);
    transfer->data = into ? into : &nothing_;
    transfer->bytes = bytes;
    transfer->mode = how;
    transfer->dtype = dtype;
    regions_.pull(transfer, offset);
    return Completion(*this, std::move(transfer));
  }

  LinkFacts link_facts(const std::vector<int>& ranks) const override {
    if (options_.links) return facts_of(*options_.links, ranks);
    const int machine = setup_.addresses.empty() ? 0 : setup_.addresses[static_cast<size_t>(ranks.front())].machine;
    const auto here = [&](int rank) { return setup_.addresses.empty() || setup_.addresses[static_cast<size_t>(rank)].machine == machine; };
    return std::all_of(ranks.begin(), ranks.end(), here) ? LinkFacts() : kBetweenMachines;
  }

  // Many on their way: on a wire, or its latency would be waited for; in shared memory, where a piece is what is copied at once.
  ShmGroup* shm_group(const std::vector<int>& ranks, uint64_t group) override {
    return shared_ ? shared_->groups().of(ranks, group) : nullptr;
  }
  Chunking chunking(const std::vector<int>&) const override { return {.bytes = kSharedPartBytes, .in_flight = 16}; }

  Completion timer(Nanoseconds at) override {
    auto transfer = made(NetTransfer::Kind::timer, -1, {});
    const auto timer = std::make_shared<asio::steady_timer>(io_, at - clock_.now());
    transfer->timer = timer;
    timer->async_wait([this, waiting = std::weak_ptr<NetTransfer>(transfer)](asio::error_code error) {
      if (const auto one = waiting.lock(); one && !error) done_.finish(one);
    });
    return Completion(*this, std::move(transfer));
  }

  void cancel(Transfer& transfer) override {
    if (auto* wait = dynamic_cast<ShmWait*>(&transfer)) return shared_->groups().forget(*wait);
    auto& one = static_cast<NetTransfer&>(transfer);
    one.data = nullptr;
    one.done = true;
    one.timer.reset();
    if (one.kind == NetTransfer::Kind::send && peers_[one.peer].open) {
      SharedLink* link = link_to(one.peer);
      link ? link->cancel(one) : peers_[one.peer].cancel(one);
    }
    regions_.forget(one);
    if (one.kind == NetTransfer::Kind::recv) inbox_.forget(one);
  }

  // A waiting rank moves its messages itself: at first without letting go of its core, since most waits are shorter than any sleep.
  bool spin(const std::function<bool()>& done) override {
    if (!shared_) return false;
    const Nanoseconds begun = clock_.now();
    Nanoseconds sockets_at = begun, moved_at = begun;
    while (true) {
      const bool moved = progress_shared();
      if (moved || !done_.empty()) {
        done_.run();
        if (done()) return true;
      }
      for (int i = 0; i < (shared_->crowded() ? 1 : kSpins) && !shared_->waits(); ++i) relax();
      if (shared_->waits()) continue;
      const Nanoseconds now = clock_.now();
      if (moved) moved_at = now;
      if (now - begun > kSpinLimit) return false;
      if (now - sockets_at > (far_ ? Nanoseconds(kFarSocketsEvery) : Nanoseconds(kSocketsEvery))) {
        sockets_at = now;
        if (io_.poll() > 0 && (done_.run(), done())) return true;
      }
      if (shared_->crowded() || now - moved_at > kKeepCore) ::sched_yield();
    }
  }

  bool drive(const std::function<bool()>& done, Nanoseconds until, const std::string&) override {
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

  void poll() override {
    progress_shared();
    io_.poll();
    done_.run();
  }

  void publish_operation(const Envelope& starting) override {
    if (liveness_) liveness_->publish_operation(starting);
  }

  std::optional<Envelope> last_started(int other) const override { return liveness_ ? liveness_->last_started(other) : std::nullopt; }
  Nanoseconds status_age(int other) const override { return liveness_ ? liveness_->status_age(other) : Nanoseconds(0); }

  const std::vector<LostPeer>& lost_peers() const override { return lost_peers_; }
  bool left(int other) const override { return peers_[other].said_bye && !peers_[other].open && !in_nic(other); }

  void fail(const std::string& reason, int culprit) override {
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

  void on_early(std::function<void(int, const Envelope&)> tell) override { inbox_.on_early(std::move(tell)); }

  std::shared_ptr<void> allocate(int64_t bytes) override {
    if (auto piece = shared_ ? shared_->allocate(bytes) : nullptr) return piece;
    return allocate_plain(bytes);
  }
  const base::Clock& clock() const override { return clock_; }
  Ledger& ledger() override { return ledger_; }

 private:
  static std::shared_ptr<NetTransfer> made(NetTransfer::Kind kind, int peer, const Envelope& envelope) {
    auto transfer = std::make_shared<NetTransfer>();
    transfer->kind = kind;
    transfer->peer = peer;
    transfer->envelope = envelope;
    return transfer;
  }

  Completion ask(int from, std::shared_ptr<NetTransfer> transfer) {
    inbox_.ask(transfer);
    if (SharedLink* link = link_to(from)) link->unpark();
    if (peers_[from].parked()) asio::post(io_, [this, from] { readable(from); });  // there may be a place now
    return Completion(*this, std::move(transfer));
  }

  LinkOwner& owner() { return *this; }
  SharedLink* link_to(int peer) const { return shared_ ? shared_->link(peer) : nullptr; }

  bool progress_shared() {
    bool moved = false;
    for (int peer = 0; shared_ && peer < size(); ++peer) moved |= link_to(peer) && progress_shared(peer);
    return (shared_ && shared_->groups().progress()) || moved;
  }

  bool progress_shared(int peer) {
    try {
      SharedLink* link = link_to(peer);
      return peers_[peer].open && link && link->progress();
    } catch (const Error& error) {
      end(peers_[peer], error.sentence());
      return true;
    }
  }

  // Until something comes: by a socket, or through shared memory, whose senders wake who sleeps.
  void rest(Nanoseconds limit) {
    if (!shared_) {
      io_.run_one_for(liveness_ ? std::min(limit, Nanoseconds(kGlanceEvery)) : limit);
      return;
    }
    if (shared_->blocked()) limit = std::min<Nanoseconds>(limit, kBlockedGlanceEvery);
    if (shared_->fall_asleep()) io_.run_one_for(std::min<Nanoseconds>(limit, kGlanceEvery));
    shared_->wake_up();
  }

  // Whose process does not even count any more has been stopped.
  void check_liveness(Nanoseconds now) {
    if (!liveness_ || !liveness_->due(now)) return;
    liveness_->begin_look(now);
    for (const NetPeer& peer : peers_) {
      if (!peer.open || peer.said_bye) continue;
      if (const auto silent = liveness_->stopped(peer.rank(), now)) {
        const bool far =
            setup_.addresses[static_cast<size_t>(peer.rank())].machine != setup_.addresses[static_cast<size_t>(rank())].machine;
        lose(peer.rank(), far ? fmt::format("no sign of life for {:.1f} s: it stands still, or the network to its machine is cut",
                                            base::seconds(*silent))
                              : fmt::format("its process stands still, without a sign of life for {:.1f} s", base::seconds(*silent)));
      }
    }
  }

  void lose(int peer, const std::string& why) {
    const bool known = std::any_of(lost_peers_.begin(), lost_peers_.end(), [&](const LostPeer& loss) { return loss.rank == peer; });
    if (!known) lost_peers_.push_back({peer, peer, why});
  }

  bool may_keep(int peer, int64_t bytes) const override {
    const int64_t counted = early_bytes_->at(static_cast<size_t>(peer));
    return bytes <= options_.early_bytes_max && (counted == 0 || counted + bytes <= options_.early_bytes_max);
  }

  // For a message that nobody asked for yet; counted until somebody has it. A message half read when a run fails outlives the transport's
  // other members, so the memory keeps the counts.
  std::shared_ptr<std::byte[]> early_memory(int peer, int64_t bytes) override {
    early_bytes_->at(static_cast<size_t>(peer)) += bytes;
    return {new std::byte[static_cast<size_t>(std::max<int64_t>(bytes, 1))], [counts = early_bytes_, peer, bytes](const std::byte* memory) {
              counts->at(static_cast<size_t>(peer)) -= bytes;
              delete[] memory;
            }};
  }

  void sent(const std::shared_ptr<Transfer>& transfer, const Ledger::Message& booking) override { written(transfer, booking); }
  void wake(int peer) override { send_frame(peer, {.kind = Frame::Kind::wake}, nullptr, nullptr, nullptr); }
  void distrust(int peer, const char* why) override { lost_peers_.push_back({peer, peer, why, /*tainted=*/true}); }

  // Sends at once what the socket takes, and the rest when it is ready.
  void send_frame(int to, const Frame& frame, const void* data, std::shared_ptr<std::byte[]> owned, std::shared_ptr<Transfer> transfer) {
    NetPeer& peer = peers_[to];
    if (!peer.open) {
      if (transfer && peer.said_bye) done_.fail(transfer, peer_has_left(to, frame.envelope));
      return;  // a lost peer fails the whole group, by losses()
    }
    const bool idle = !peer.wants_write();
    const Ledger::Message booking{rank(), to, frame.payload_bytes(), frame.purpose, clock_.now(), {}};
    peer.enqueue(frame, data, std::move(owned), std::move(transfer), booking, pace_of(to, frame));
    if (idle) writable(to);
  }

  // A message of a shaped link arrives as if it had come that way: its last byte when the model says, the others before it.
  Pace pace_of(int to, const Frame& frame) {
    if (!shaper_ || frame.payload_bytes() == 0) return {};
    const int64_t bytes = kFrameBytes + frame.payload_bytes();
    const double bytes_per_ns = shaper_->model().bytes_per_s / 1e9;
    const Nanoseconds arrives = shaper_->send(rank(), to, bytes, clock_.now()).arrives;
    return {arrives - Nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_ns)), bytes_per_ns};
  }

  void wake_when_released(int peer) {
    const auto timer = std::make_shared<asio::steady_timer>(io_, *peers_[peer].held_until() - clock_.now());
    peers_[peer].write_armed = true;
    timer->async_wait([this, peer, timer](asio::error_code error) {
      peers_[peer].write_armed = false;
      if (!error) writable(peer);
    });
  }

  void arm_read(int peer) {
    if (std::exchange(peers_[peer].read_armed, true)) return;
    if (peers_[peer].has_buffered()) {  // the socket would wake nobody for it
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

  void arm_write(int peer) {
    if (std::exchange(peers_[peer].write_armed, true)) return;
    sockets_[peer].async_wait(tcp::socket::wait_write, [this, peer](asio::error_code error) {
      peers_[peer].write_armed = false;
      if (!error) writable(peer);
    });
  }

  void readable(int rank) {
    NetPeer& peer = peers_[rank];
    if (!peer.open) return;
    try {
      peer.read(*this);
      if (peer.open && !peer.parked()) arm_read(rank);
    } catch (const Error& error) {
      end(peer, error.sentence());
    }
  }

  void writable(int rank) {
    NetPeer& peer = peers_[rank];
    if (!peer.open) return;
    try {
      if (peer.write_armed) return;
      peer.write(*this, clock_.now());
      if (!peer.wants_write()) return;
      peer.held_until() ? wake_when_released(rank) : arm_write(rank);
    } catch (const Error& error) {
      // What it said before it went is still to be read, its reason perhaps.
      if (peer.open) readable(rank);
      if (peer.open) end(peer, error.sentence());
    }
  }

  // The peer is gone: in good order if it said so, else lost. What it wrote before is still there.
  void end(NetPeer& peer, const std::string& reason) {
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
    if (!peer.said_bye) return lose(peer.rank(), reason);
    if (!in_nic(peer.rank())) inbox_.close(peer.rank());
    if (shared_) shared_->groups().close(peer.rank());
  }

  std::optional<PayloadTarget> place(int from, const Frame& frame) override {
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

  void on_payload(int from, const Frame& frame, PayloadTarget target) override {
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
        progress_shared(from);  // what it said before counts
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

  // Where links are shaped and share their cards, this rank's card may still be busy with others' messages.
  void through_nic(int from, const Frame& frame, PayloadTarget target) {
    const Nanoseconds now = clock_.now(), at = shaper_->receive(rank(), kFrameBytes + frame.bytes, now);
    if (at <= now) return deliver(from, frame, std::move(target));
    in_nic_.push_back({at, from, frame, std::move(target)});
    const auto timer = std::make_shared<asio::steady_timer>(io_, at - now);
    timer->async_wait([this, timer](asio::error_code error) {
      if (!error) leave_nic();
    });
  }

  bool in_nic(int from) const {
    return std::any_of(in_nic_.begin(), in_nic_.end(), [&](const InNic& one) { return one.from == from; });
  }

  void leave_nic() {
    while (!in_nic_.empty() && in_nic_.front().at <= clock_.now()) {
      InNic one = std::move(in_nic_.front());
      in_nic_.pop_front();
      deliver(one.from, one.frame, std::move(one.target));
      if (peers_[one.from].said_bye && !peers_[one.from].open && !in_nic(one.from)) inbox_.close(one.from);
    }
  }

  void deliver(int from, const Frame& frame, PayloadTarget target) {
    if (!target.owned) {
      if (target.transfer && target.transfer->data) done_.finish(target.transfer);
    } else if (target.transfer) {  // asked for as a view
      target.transfer->view = target.owned.get();
      target.transfer->held = std::move(target.owned);
      if (!target.transfer->done) done_.finish(target.transfer);
    } else {  // (somebody may have asked for it while it was arriving)
      const std::byte* data = target.owned.get();
      inbox_.arrive({from, frame.envelope, frame.bytes, data, std::move(target.owned)});
    }
  }

  void written(const std::shared_ptr<Transfer>& transfer, const Ledger::Message& booking) override {
    Ledger::Message message = booking;
    message.ended = clock_.now();
    ledger_.book(message);
    if (transfer) done_.finish(transfer);
  }

  template <typename Pending>
  void run_while(Pending pending, Nanoseconds limit) {
    const Nanoseconds until = clock_.now() + limit;
    while (std::any_of(peers_.begin(), peers_.end(), pending) && clock_.now() < until) {
      if (!progress_shared()) rest(until - clock_.now());
    }
  }

  void flush(Nanoseconds limit) {
    run_while(
        [this](const NetPeer& peer) {
          const SharedLink* link = link_to(peer.rank());
          return peer.open && (peer.wants_write() || (link && !link->all_sent()));
        },
        limit);
  }

  // Ends the connections so that nothing sent is lost: all written, then bye, then until the peers have ended too (or not for long).
  void leave() noexcept try {
    if (!failed_) {
      flush(kFlushDeadline);
      for (NetPeer& peer : peers_) {
        if (peer.open) send_frame(peer.rank(), {.kind = Frame::Kind::bye}, nullptr, nullptr, nullptr);
      }
      flush(kFlushDeadline);
      for (NetPeer& peer : peers_) {
        if (peer.open) peer.end_writing();
      }
      run_while([](const NetPeer& peer) { return peer.open && !peer.parked(); }, kFarewellDeadline);
    }
  } catch (...) {  // a destructor never throws; the sockets are closed all the same
  }

  NetSetup setup_;
  NetOptions options_;
  base::RealClock clock_;
  Ledger ledger_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  std::vector<tcp::socket> sockets_;
  std::vector<NetPeer> peers_;
  DoneQueue done_;
  Inbox inbox_;
  std::shared_ptr<std::vector<int64_t>> early_bytes_ = std::make_shared<std::vector<int64_t>>();  // of messages nobody asked for, by peer
  std::unique_ptr<SharedMemory> shared_;                                                          // none: sockets only
  std::unique_ptr<PeerLiveness> liveness_;                                                        // none: nobody else can be seen
  std::optional<Shaper> shaper_;                                                                  // links are as slow as it says
  struct InNic {
    Nanoseconds at;
    int from;
    Frame frame;
    PayloadTarget target;
  };
  std::deque<InNic> in_nic_;
  bool far_ = false;  // there are other machines
  NetRegions regions_;
  std::vector<LostPeer> lost_peers_;
  bool failed_ = false;
  std::byte nothing_{};
};

}  // namespace

std::unique_ptr<Transport> make_net_transport(NetSetup setup, NetOptions options) {
  CAIRN_CHECK(setup.size >= 1 && setup.rank >= 0 && setup.rank < setup.size, "rank {} of {}", setup.rank, setup.size);
  CAIRN_CHECK(static_cast<int>(setup.addresses.size()) == setup.size || setup.size == 1, "{} addresses for {} ranks",
              setup.addresses.size(), setup.size);
  return std::make_unique<NetTransport>(std::move(setup), options);
}

}  // namespace cairn::comm
