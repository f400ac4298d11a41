#include "comm/net.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <sys/socket.h>
#include <utility>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <fmt/format.h>

#include "base/check.h"
#include "comm/net_meeting.h"
#include "comm/net_peer.h"

namespace cairn::comm {
namespace {

using asio::ip::tcp;
using Nanoseconds = std::chrono::nanoseconds;
using EnvelopeKey = std::tuple<uint64_t, uint64_t, uint32_t>;
using PeerKey = std::pair<int, EnvelopeKey>;

constexpr auto kFlushDeadline = std::chrono::seconds(10);    // for messages still to go when a rank ends
constexpr auto kFarewellDeadline = std::chrono::seconds(2);  // for peers to end too
constexpr auto kFailDeadline = std::chrono::seconds(1);      // to tell the others why

// A message that came before anybody asked for it.
struct Early {
  Frame frame;
  std::shared_ptr<std::byte[]> data;
};

class NetTransport final : public Transport, private FrameSink {
 public:
  NetTransport(NetSetup setup, NetOptions options) : setup_(std::move(setup)), options_(options), io_(1), guard_(io_.get_executor()) {
    const std::vector<int> connected = meet(setup_, options_);
    for (int rank = 0; rank < size(); ++rank) {
      sockets_.emplace_back(io_);
      if (connected[rank] >= 0) sockets_[rank].assign(tcp::v4(), connected[rank]);
      peers_.emplace_back(rank, connected[rank], options_.message_bytes_max);
      if (rank == setup_.rank) continue;
      sockets_[rank].non_blocking(true);
      sockets_[rank].set_option(tcp::no_delay(true));
      arm_read(rank);
    }
    peers_[setup_.rank].open = false;
  }

  ~NetTransport() override { leave(); }

  int rank() const override { return setup_.rank; }
  int size() const override { return setup_.size; }

  Completion send(int to, const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override {
    CAIRN_CHECK(bytes <= options_.message_bytes_max, "a message of {} bytes, at most {} are allowed", bytes, options_.message_bytes_max);
    auto transfer = made(NetTransfer::Kind::send, to, envelope);
    transfer->outgoing = true;
    say(to, {.kind = Frame::Kind::message, .purpose = purpose, .envelope = envelope, .bytes = bytes}, data, nullptr, transfer);
    return Completion(*this, std::move(transfer));
  }

  Completion recv(int from, const Envelope& envelope, void* into, int64_t bytes) override {
    auto transfer = made(NetTransfer::Kind::recv, from, envelope);
    transfer->data = into ? into : &nothing_;
    transfer->bytes = bytes;
    const PeerKey key{from, envelope.key()};
    if (const auto found = early_.find(key); found != early_.end()) {
      const Early early = std::move(found->second.front());
      found->second.pop_front();
      if (found->second.empty()) early_.erase(found);
      peers_[from].early_bytes -= early.frame.bytes;
      if (fits(transfer, from, early.frame)) take(transfer, early.data.get(), early.frame.bytes);
    } else if (!peers_[from].open && peers_[from].said_bye) {
      done_.fail(transfer, peer_has_left(from, envelope));
    } else {
      wanted_[key].push_back(transfer);
    }
    if (peers_[from].parked()) asio::post(io_, [this, from] { readable(from); });  // there may be a place now
    return Completion(*this, std::move(transfer));
  }

  Completion expose(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override {
    auto transfer = made(NetTransfer::Kind::expose, -1, envelope);
    transfer->purpose = purpose;
    transfer->data = const_cast<void*>(data);
    transfer->bytes = bytes;
    exposed_[envelope.key()] = transfer;
    for (const auto& [peer, pull] : std::exchange(early_pulls_, {})) answer(peer, pull);
    return Completion(*this, std::move(transfer));
  }

  Completion pull(int peer, const Envelope& envelope, int64_t offset, void* into, int64_t bytes, Take how, Dtype dtype) override {
    auto transfer = made(NetTransfer::Kind::pull, peer, envelope);
    transfer->data = into ? into : &nothing_;
    transfer->bytes = bytes;
    transfer->take = how;
    transfer->dtype = dtype;
    transfer->number = ++pulls_made_;
    pulls_[transfer->number] = transfer;
    say(peer, {.kind = Frame::Kind::pull, .envelope = envelope, .bytes = bytes, .offset = offset, .number = transfer->number}, nullptr,
        nullptr, nullptr);
    return Completion(*this, std::move(transfer));
  }

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
    auto& one = static_cast<NetTransfer&>(transfer);
    one.data = nullptr;
    one.done = true;
    one.timer.reset();
    if (one.kind == NetTransfer::Kind::send && peers_[one.peer].open) peers_[one.peer].cancel(one);
    if (one.kind == NetTransfer::Kind::expose) exposed_.erase(one.envelope.key());
    if (one.kind == NetTransfer::Kind::pull) pulls_.erase(one.number);
    if (one.kind != NetTransfer::Kind::recv) return;
    const auto found = wanted_.find({one.peer, one.envelope.key()});
    if (found == wanted_.end()) return;
    std::erase_if(found->second, [&](const auto& other) { return other.get() == &one; });
    if (found->second.empty()) wanted_.erase(found);
  }

  bool drive(const std::function<bool()>& done, Nanoseconds until, const std::string&) override {
    while (true) {
      done_.run();
      if (done()) return true;
      const Nanoseconds now = clock_.now();
      if (now >= until) return false;
      if (done_.empty()) io_.run_one_for(until - now);
      io_.poll();
    }
  }

  void poll() override {
    io_.poll();
    done_.run();
  }

  const std::vector<Loss>& losses() const override { return losses_; }

  void fail(const std::string& reason, int culprit) override {
    if (std::exchange(failed_, true)) return;
    const auto bytes = std::min(static_cast<int64_t>(reason.size()), kReasonBytesMax);
    const auto text = std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
    std::memcpy(text.get(), reason.data(), static_cast<size_t>(bytes));
    for (NetPeer& peer : peers_) {
      if (!peer.open) continue;
      say(peer.rank(), {.kind = Frame::Kind::failing, .bytes = bytes, .number = static_cast<uint64_t>(culprit)}, text.get(), text, nullptr);
    }
    flush(kFailDeadline);
  }

  void on_early(std::function<void(int, const Envelope&)> tell) override { tell_early_ = std::move(tell); }
  std::shared_ptr<void> allocate(int64_t bytes) override { return allocate_plain(bytes); }
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

  // Sends at once what the socket takes, and the rest when it is ready.
  void say(int to, const Frame& frame, const void* data, std::shared_ptr<std::byte[]> owned, std::shared_ptr<NetTransfer> transfer) {
    NetPeer& peer = peers_[to];
    if (!peer.open) {
      if (transfer && peer.said_bye) done_.fail(transfer, peer_has_left(to, frame.envelope));
      return;  // a lost peer fails the whole group, by losses()
    }
    const bool idle = !peer.wants_write();
    const Ledger::Message booking{rank(), to, frame.payload_bytes(), frame.purpose, clock_.now(), {}};
    peer.enqueue(frame, data, std::move(owned), std::move(transfer), booking);
    if (idle) writable(to);
  }

  void arm_read(int peer) {
    if (std::exchange(peers_[peer].read_armed, true)) return;
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
      peer.write(*this);
      if (peer.wants_write()) arm_write(rank);
    } catch (const Error& error) {
      // What it said before it went is still to be read, its reason perhaps.
      if (peer.open) readable(rank);
      if (peer.open) end(peer, error.sentence());
    }
  }

  // The peer is gone: in good order if it said so, else lost.
  void end(NetPeer& peer, const std::string& reason) {
    peer.open = false;
    asio::error_code ignored;
    sockets_[peer.rank()].close(ignored);
    if (!peer.said_bye) {
      const bool known = std::any_of(losses_.begin(), losses_.end(), [&](const Loss& loss) { return loss.rank == peer.rank(); });
      if (!known) losses_.push_back({peer.rank(), peer.rank(), reason});
      return;
    }
    for (auto one = wanted_.begin(); one != wanted_.end();) {
      if (one->first.first == peer.rank()) {
        for (const auto& transfer : one->second) done_.fail(transfer, peer_has_left(peer.rank(), transfer->envelope));
        one = wanted_.erase(one);
      } else {
        ++one;
      }
    }
  }

  std::optional<Landing> place(int from, const Frame& frame) override {
    if (frame.kind == Frame::Kind::reply) {
      const auto found = pulls_.find(frame.number);
      if (found == pulls_.end()) return Landing{};
      if (frame.bytes != found->second->bytes) throw Error(Error::Kind::lost_peer, "answered a pull with another number of bytes");
      if (found->second->take == Take::replace) return Landing{found->second, nullptr};
    } else if (frame.kind == Frame::Kind::message) {
      const auto found = wanted_.find({from, frame.envelope.key()});
      if (found != wanted_.end()) {
        const auto transfer = found->second.front();
        found->second.pop_front();
        if (found->second.empty()) wanted_.erase(found);
        return fits(transfer, from, frame) ? Landing{transfer, nullptr} : Landing{};
      }
      NetPeer& peer = peers_[from];
      if (peer.early_bytes > 0 && peer.early_bytes + frame.bytes > options_.early_bytes_max) return std::nullopt;
      if (frame.bytes > options_.early_bytes_max) return std::nullopt;
      peer.early_bytes += frame.bytes;
    }
    return Landing{nullptr, std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(frame.payload_bytes()))};
  }

  void landed(int from, const Frame& frame, Landing landing) override {
    switch (frame.kind) {
      case Frame::Kind::message:
        if (landing.transfer) {
          if (landing.transfer->data) done_.finish(landing.transfer);
        } else if (landing.owned) {
          keep_early(from, frame, std::move(landing.owned));
        }
        break;
      case Frame::Kind::reply:
        if (const auto found = pulls_.find(frame.number); found != pulls_.end()) {
          const auto transfer = found->second;
          pulls_.erase(found);
          landing.owned ? take(transfer, landing.owned.get(), frame.bytes) : done_.finish(transfer);
        }
        break;
      case Frame::Kind::pull:
        answer(from, frame);
        break;
      case Frame::Kind::failing: {
        const std::string reason(reinterpret_cast<const char*>(landing.owned.get()), static_cast<size_t>(frame.bytes));
        const bool sensible = frame.number < static_cast<uint64_t>(size());
        losses_.push_back({from, sensible ? static_cast<int>(frame.number) : from, reason});
        break;
      }
      case Frame::Kind::bye:
        peers_[from].said_bye = true;
        break;
    }
  }

  // Somebody may have asked for it while it was arriving.
  void keep_early(int from, const Frame& frame, std::shared_ptr<std::byte[]> data) {
    const PeerKey key{from, frame.envelope.key()};
    if (const auto found = wanted_.find(key); found != wanted_.end()) {
      const auto transfer = found->second.front();
      found->second.pop_front();
      if (found->second.empty()) wanted_.erase(found);
      peers_[from].early_bytes -= frame.bytes;
      if (fits(transfer, from, frame)) take(transfer, data.get(), frame.bytes);
      return;
    }
    early_[key].push_back({frame, std::move(data)});
    if (tell_early_) tell_early_(from, frame.envelope);
  }

  // Whether the message is what the receive asked for; if not, the receive has failed.
  bool fits(const std::shared_ptr<NetTransfer>& wanted, int from, const Frame& frame) {
    if (frame.envelope.signature == wanted->envelope.signature && frame.bytes == wanted->bytes) return true;
    done_.fail(wanted, mismatch(from, frame.envelope, rank(), wanted->envelope.signature, wanted->envelope.what));
    return false;
  }

  void take(const std::shared_ptr<NetTransfer>& transfer, const std::byte* data, int64_t bytes) {
    if (transfer->take == Take::add) {
      add_into(transfer->dtype, transfer->data, data, bytes / size_of(transfer->dtype));
    } else if (bytes > 0) {
      std::memcpy(transfer->data, data, static_cast<size_t>(bytes));
    }
    done_.finish(transfer);
  }

  void answer(int peer, const Frame& pull) {
    const auto found = exposed_.find(pull.envelope.key());
    if (found == exposed_.end()) {
      early_pulls_.emplace_back(peer, pull);
      return;
    }
    const NetTransfer& region = *found->second;
    if (pull.offset > region.bytes - pull.bytes) {
      throw Error(Error::Kind::lost_peer, fmt::format("asked for {} bytes at {} of a region of {}", pull.bytes, pull.offset, region.bytes));
    }
    const auto* first = static_cast<const std::byte*>(region.data) + pull.offset;
    // A copy, so that the region may be withdrawn while the answer is on its way.
    auto copy = std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(pull.bytes));
    std::memcpy(copy.get(), first, static_cast<size_t>(pull.bytes));
    const std::byte* data = copy.get();
    say(peer,
        {.kind = Frame::Kind::reply, .purpose = region.purpose, .envelope = pull.envelope, .bytes = pull.bytes, .number = pull.number},
        data, std::move(copy), nullptr);
  }

  void written(const std::shared_ptr<NetTransfer>& transfer, const Ledger::Message& booking) override {
    Ledger::Message message = booking;
    message.ended = clock_.now();
    ledger_.book(message);
    if (transfer) done_.finish(transfer);
  }

  template <typename Pending>
  void run_while(Pending pending, Nanoseconds limit) {
    const Nanoseconds until = clock_.now() + limit;
    while (std::any_of(peers_.begin(), peers_.end(), pending) && clock_.now() < until) io_.run_one_for(until - clock_.now());
  }

  void flush(Nanoseconds limit) {
    run_while([](const NetPeer& peer) { return peer.open && peer.wants_write(); }, limit);
  }

  // Ends the connections so that nothing sent is lost: all written, then bye, then until the peers have ended too (or not for long).
  void leave() noexcept try {
    if (!failed_) {
      flush(kFlushDeadline);
      for (NetPeer& peer : peers_) {
        if (peer.open) say(peer.rank(), {.kind = Frame::Kind::bye}, nullptr, nullptr, nullptr);
      }
      flush(kFlushDeadline);
      for (NetPeer& peer : peers_) {
        if (peer.open) ::shutdown(sockets_[peer.rank()].native_handle(), SHUT_WR);
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
  std::map<PeerKey, std::deque<std::shared_ptr<NetTransfer>>> wanted_;
  std::map<PeerKey, std::deque<Early>> early_;
  std::map<EnvelopeKey, std::shared_ptr<NetTransfer>> exposed_;
  std::vector<std::pair<int, Frame>> early_pulls_;
  std::map<uint64_t, std::shared_ptr<NetTransfer>> pulls_;
  uint64_t pulls_made_ = 0;
  std::vector<Loss> losses_;
  bool failed_ = false;
  std::byte nothing_{};
  std::function<void(int, const Envelope&)> tell_early_;
};

}  // namespace

std::unique_ptr<Transport> make_net_transport(NetSetup setup, NetOptions options) {
  CAIRN_CHECK(setup.size >= 1 && setup.rank >= 0 && setup.rank < setup.size, "rank {} of {}", setup.rank, setup.size);
  CAIRN_CHECK(setup.size == 1 || static_cast<int>(setup.ports.size()) == setup.size, "{} ports for {} ranks", setup.ports.size(),
              setup.size);
  return std::make_unique<NetTransport>(std::move(setup), options);
}

}  // namespace cairn::comm
