// The MPI transport: ranks that mpirun or srun started. Matching is ours (inbox.h), MPI moves bytes.
//
// Two protocols, as in most MPI libraries:
//   eager       up to inline_bytes: header and payload in one frame; kept by the receiver until a receive asks for it.
//   rendezvous  longer: the header alone announces the message. When a receive matches, the receiver posts MPI_Irecv straight into the
//               user's buffer and answers with a `wake` frame; then the sender starts MPI_Isend from its own buffer.
// So a long send can be cancelled until it is wanted, and unexpected long messages stay at their sender.
//
// MPI has nothing to sleep on. A waiting rank polls, after 0.2 ms yields its core between polls, after 5 ms naps 0.1 ms between polls.
#include "comm/mpi/transport.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <poll.h>
#include <sched.h>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "comm/inbox.h"
#include "comm/mpi/endpoint.h"
#include "comm/mpi/regions.h"
#include "comm/net/frame.h"

namespace cairn::comm {
namespace {

using Nanoseconds = std::chrono::nanoseconds;
using EnvelopeKey = std::tuple<uint64_t, uint64_t, uint32_t>;

constexpr auto kFlushDeadline = std::chrono::seconds(10);           // for outgoing messages when a rank ends
constexpr auto kFarewellDeadline = std::chrono::seconds(2);         // for peers to end too
constexpr auto kFailDeadline = std::chrono::seconds(1);             // to send the reason of a failure
constexpr auto kSpinLimit = std::chrono::microseconds(1000);        // of spin()
constexpr auto kKeepCore = std::chrono::microseconds(200);          // without progress; then the core is offered to others
constexpr auto kKeepOversubscribed = std::chrono::microseconds(5);  // the same, with more ranks than cores
constexpr auto kAwake = std::chrono::milliseconds(5);               // without progress; then it naps between polls
constexpr auto kNap = std::chrono::microseconds(100);
constexpr int64_t kUnwanted = 1;  // in the offset of a wake frame: drop the message, the receive was for something else

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(MpiOptions options)
      : options_(options),
        endpoint_(clock_, {.meet_deadline = options.meet_deadline,
                           .frame_bytes = kFrameBytes + std::max(options.inline_bytes, kReasonBytesMax),
                           .part_bytes = options.part_bytes}),
        inbox_(endpoint_.rank(), done_),
        peers_(static_cast<size_t>(endpoint_.size())) {
    peers_[rank()].open = false;
  }

  ~MpiTransport() override {
    leave();
    inbox_.clear();
  }

  int rank() const override { return endpoint_.rank(); }
  int size() const override { return endpoint_.size(); }

  Completion send(int to, const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override {
    auto transfer = make_transfer(MpiTransfer::Kind::send, to, envelope);
    transfer->outgoing = true;
    transfer->purpose = purpose;
    transfer->data = const_cast<void*>(data);
    transfer->bytes = bytes;
    Frame frame{.kind = Frame::Kind::message, .purpose = purpose, .envelope = envelope, .bytes = bytes};
    const Ledger::Message booking{rank(), to, bytes, purpose, clock_.now(), {}};
    if (!peers_[to].open) {
      if (peers_[to].said_bye) done_.fail(transfer, peer_has_left(to, envelope));
    } else if (bytes <= options_.inline_bytes) {
      send_frame(to, frame, data);
      sent(transfer, booking);
    } else {
      frame.number = transfer->number = ++announcements_;
      announced_[frame.number] = {transfer, booking};
      send_frame(to, frame, nullptr);
    }
    return Completion(*this, std::move(transfer));
  }

  Completion recv(int from, const Envelope& envelope, void* into, int64_t bytes) override {
    auto transfer = make_transfer(MpiTransfer::Kind::recv, from, envelope);
    transfer->data = into ? into : &nothing_;
    transfer->bytes = bytes;
    return ask(from, std::move(transfer));
  }

  Completion recv_view(int from, const Envelope& envelope, int64_t bytes) override {
    auto transfer = make_transfer(MpiTransfer::Kind::recv, from, envelope);
    transfer->viewed = true;
    transfer->bytes = bytes;
    return ask(from, std::move(transfer));
  }

  Completion expose(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override {
    auto transfer = make_transfer(MpiTransfer::Kind::expose, -1, envelope);
    transfer->purpose = purpose;
    transfer->data = const_cast<void*>(data);
    transfer->bytes = bytes;
    regions_.expose(transfer);
    return Completion(*this, std::move(transfer));
  }

  Completion pull(int peer, const Envelope& envelope, int64_t offset, void* into, int64_t bytes, PullMode how, Dtype dtype) override {
    auto transfer = make_transfer(MpiTransfer::Kind::pull, peer, envelope);
    transfer->data = into ? into : &nothing_;
    transfer->bytes = bytes;
    transfer->mode = how;
    transfer->dtype = dtype;
    transfer->number = ++pulls_;
    if (!peers_[peer].open) {
      if (peers_[peer].said_bye) done_.fail(transfer, peer_has_left(peer, envelope));
      return Completion(*this, std::move(transfer));
    }
    send_frame(peer, regions_.begin_pull(transfer, offset), nullptr);
    return Completion(*this, std::move(transfer));
  }

  Chunking chunking(const std::vector<int>&) const override { return {.bytes = 1 << 20, .in_flight = 4}; }

  Completion timer(Nanoseconds at) override {
    auto transfer = make_transfer(MpiTransfer::Kind::timer, -1, {});
    timers_.emplace(at, transfer);
    return Completion(*this, std::move(transfer));
  }

  void cancel(Transfer& transfer) override {
    auto& one = static_cast<MpiTransfer&>(transfer);
    one.done = true;
    if (one.kind == MpiTransfer::Kind::expose) {
      regions_.forget(one);
    } else if (one.kind == MpiTransfer::Kind::recv) {
      inbox_.forget(one);
    } else if (one.kind == MpiTransfer::Kind::send && announced_.erase(one.number) > 0) {
      return;
    }
    if (one.kind != MpiTransfer::Kind::timer && one.kind != MpiTransfer::Kind::expose) endpoint_.withdraw(one);
  }

  bool spin(const std::function<bool()>& done) override {
    const Nanoseconds begun = clock_.now();
    Nanoseconds moved_at = begun;
    while (true) {
      const bool moved = progress();
      if (moved || !done_.empty()) {
        done_.run();
        if (done()) return true;
      }
      const Nanoseconds now = clock_.now();
      if (moved) moved_at = now;
      if (now - begun > kSpinLimit) return false;
      if (now - moved_at > keep_core()) ::sched_yield();
    }
  }

  bool drive(const std::function<bool()>& done, Nanoseconds until, const std::string&) override {
    Nanoseconds moved_at = clock_.now();
    while (true) {
      const Nanoseconds now = clock_.now();  // before progress: what came in time counts, even if this rank was descheduled
      const bool moved = progress();
      done_.run();
      if (done()) return true;
      if (now >= until) return false;
      if (moved) moved_at = now;
      if (done_.empty()) rest(now - moved_at);
    }
  }

  void poll() override {
    progress();
    done_.run();
  }

  const std::vector<LostPeer>& lost_peers() const override { return lost_peers_; }
  bool left(int other) const override { return peers_[other].said_bye; }

  void fail(const std::string& reason, int culprit) override {
    if (std::exchange(failed_, true)) return;
    const auto bytes = std::min(static_cast<int64_t>(reason.size()), kReasonBytesMax);
    for (int peer = 0; peer < size(); ++peer) {
      if (!peers_[peer].open) continue;
      send_frame(peer, {.kind = Frame::Kind::failing, .bytes = bytes, .number = static_cast<uint64_t>(culprit)}, reason.data());
    }
    run_while([this] { return endpoint_.sending(); }, kFailDeadline);
  }

  void on_early(std::function<void(int, const Envelope&)> tell) override {
    tell_early_ = tell;
    inbox_.on_early(std::move(tell));
  }

  std::shared_ptr<void> allocate(int64_t bytes) override { return allocate_plain(bytes); }
  const base::Clock& clock() const override { return clock_; }
  Ledger& ledger() override { return ledger_; }

 private:
  struct Peer {
    bool open = true;       // false: lost, or left
    bool said_bye = false;  // it has ended in good order
  };
  struct Announced {
    std::shared_ptr<MpiTransfer> transfer;
    Ledger::Message booking;
  };

  static std::shared_ptr<MpiTransfer> make_transfer(MpiTransfer::Kind kind, int peer, const Envelope& envelope) {
    auto transfer = std::make_shared<MpiTransfer>();
    transfer->kind = kind;
    transfer->peer = peer;
    transfer->envelope = envelope;
    return transfer;
  }

  static uint64_t message_lane(uint64_t number) { return 2 * number; }  // even; pulls have the odd lanes

  Completion ask(int from, std::shared_ptr<MpiTransfer> transfer) {
    inbox_.ask(transfer);
    const auto held = held_.find({from, transfer->envelope.key()});
    if (held != held_.end()) {
      const Frame frame = held->second;
      held_.erase(held);
      announcement(from, frame);
    }
    return Completion(*this, std::move(transfer));
  }

  void send_frame(int to, const Frame& frame, const void* payload) {
    if (peers_[to].open) write(to, frame, payload);
  }

  // Writes the header and, if given, the payload of an eager message.
  void write(int to, const Frame& frame, const void* payload) {
    const int64_t bytes = payload ? frame.payload_bytes() : 0;
    auto memory = std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(kFrameBytes + bytes));
    const auto header = encode(frame);
    std::memcpy(memory.get(), header.data(), header.size());
    if (bytes > 0) std::memcpy(memory.get() + kFrameBytes, payload, static_cast<size_t>(bytes));
    endpoint_.send_frame(to, std::move(memory), kFrameBytes + bytes);
  }

  void sent(const std::shared_ptr<Transfer>& transfer, Ledger::Message booking) {
    booking.ended = clock_.now();
    ledger_.book(booking);
    if (transfer) done_.finish(transfer);
  }

  // Returns whether anything happened.
  bool progress() {
    bool moved = false;
    while (const auto heard = endpoint_.next_frame()) {
      moved = true;
      try {
        CAIRN_CHECK(heard->frame.size() >= kFrameBytes, "a frame of {} bytes", heard->frame.size());
        on_frame(heard->from, decode(heard->frame.first<kFrameBytes>(), INT64_MAX), heard->frame.subspan(kFrameBytes));
      } catch (const Error& error) {
        lose(heard->from, error.sentence());
      }
    }
    moved |= finish_payloads();
    while (!timers_.empty() && timers_.begin()->first <= clock_.now()) {
      if (const auto one = timers_.begin()->second.lock(); one && !one->done) done_.finish(one);
      timers_.erase(timers_.begin());
      moved = true;
    }
    return moved;
  }

  bool finish_payloads() {
    bool moved = false;
    for (const std::shared_ptr<MpiPayload>& payload : endpoint_.ended()) {
      moved = true;
      if (!payload->error.empty()) {
        lose(payload->peer, "MPI says: " + payload->error);
      } else if (payload->outgoing) {
        if (payload->booking) sent(payload->transfer, *payload->booking);
      } else if (payload->transfer && !payload->transfer->cancelled) {
        received(*payload);
      }
    }
    return moved;
  }

  void received(MpiPayload& payload) {
    auto& transfer = static_cast<MpiTransfer&>(*payload.transfer);
    if (transfer.viewed) {
      transfer.view = payload.data;
      transfer.held = std::move(payload.owned);
    } else if (transfer.mode == PullMode::add) {
      add_into(transfer.dtype, transfer.data, payload.data, payload.bytes / size_of(transfer.dtype));
    }
    done_.finish(payload.transfer);
  }

  Nanoseconds keep_core() const { return endpoint_.oversubscribed() ? kKeepOversubscribed : kKeepCore; }

  void rest(Nanoseconds idle) const {
    if (idle < keep_core()) return;
    if (idle < kAwake) {
      ::sched_yield();
      return;
    }
    const timespec nap{.tv_sec = 0, .tv_nsec = Nanoseconds(kNap).count()};
    ::ppoll(nullptr, 0, &nap, nullptr);
  }

  void on_frame(int from, const Frame& frame, std::span<const std::byte> payload) {
    switch (frame.kind) {
      case Frame::Kind::message:
        frame.bytes <= options_.inline_bytes ? message(from, frame, payload) : announcement(from, frame);
        break;
      case Frame::Kind::wake:
        wanted(from, frame);
        break;
      case Frame::Kind::pull:
        regions_.answer(from, frame);
        break;
      case Frame::Kind::failing: {
        finish_payloads();  // earlier payloads count
        const auto* text = reinterpret_cast<const char*>(payload.data());
        const bool sensible = frame.number < static_cast<uint64_t>(size());
        lost_peers_.push_back({from, sensible ? static_cast<int>(frame.number) : from, std::string(text, payload.size())});
        close(from);
        break;
      }
      case Frame::Kind::bye:
        peers_[from].said_bye = true;
        inbox_.close(from);
        close(from);
        break;
      case Frame::Kind::reply:
        throw Error(Error::Kind::lost_peer, "sent a frame that has no place in MPI");
    }
  }

  void message(int from, const Frame& frame, std::span<const std::byte> payload) {
    if (static_cast<int64_t>(payload.size()) != frame.bytes) throw Error(Error::Kind::lost_peer, "sent a frame cut short");
    const Inbox::Found found = inbox_.wanted(from, frame.envelope, frame.bytes);
    if (found.refused) return;
    if (found.receive && !found.receive->viewed) {
      if (!payload.empty()) std::memcpy(found.receive->data, payload.data(), payload.size());
      return inbox_.finish(found.receive);
    }
    std::shared_ptr<void> copy = allocate_plain(frame.bytes);
    const auto* data = static_cast<std::byte*>(copy.get());
    if (!payload.empty()) std::memcpy(copy.get(), payload.data(), payload.size());
    if (found.receive) {
      found.receive->view = data;
      found.receive->held = std::move(copy);
      inbox_.finish(found.receive);
    } else {
      inbox_.arrive({from, frame.envelope, frame.bytes, data, std::move(copy)});
    }
  }

  // A long message is announced. It stays at its sender until a receive asks for it.
  void announcement(int from, const Frame& frame) {
    Inbox::Found found = inbox_.wanted(from, frame.envelope, frame.bytes);
    Frame reply{.kind = Frame::Kind::wake, .envelope = frame.envelope, .number = frame.number};
    if (found.refused) {
      reply.offset = kUnwanted;
      return send_frame(from, reply, nullptr);
    }
    if (!found.receive) {
      if (!held_.emplace(std::pair(from, frame.envelope.key()), frame).second) {
        throw Error(Error::Kind::lost_peer,
                    fmt::format("sent message {} of operation {} twice", frame.envelope.step, frame.envelope.sequence));
      }
      if (tell_early_) tell_early_(from, frame.envelope);
      return;
    }
    const std::shared_ptr<void> own = found.receive->viewed ? allocate_plain(frame.bytes) : nullptr;
    void* to = own ? own.get() : found.receive->data;
    endpoint_.start(std::make_shared<MpiPayload>(MpiPayload{.peer = from,
                                                            .lane = message_lane(frame.number),
                                                            .data = static_cast<std::byte*>(to),
                                                            .bytes = frame.bytes,
                                                            .transfer = std::move(found.receive),
                                                            .owned = own}));
    send_frame(from, reply, nullptr);
  }

  // The receiver of a long message has posted its receive.
  void wanted(int from, const Frame& frame) {
    const auto found = announced_.find(frame.number);
    if (found == announced_.end() || found->second.transfer->peer != from) return;  // taken back
    const Announced one = std::move(found->second);
    announced_.erase(found);
    if (frame.offset == kUnwanted) return sent(one.transfer, one.booking);
    endpoint_.start(std::make_shared<MpiPayload>(MpiPayload{.outgoing = true,
                                                            .peer = from,
                                                            .lane = message_lane(frame.number),
                                                            .data = static_cast<std::byte*>(one.transfer->data),
                                                            .bytes = one.transfer->bytes,
                                                            .transfer = one.transfer,
                                                            .booking = one.booking}));
  }

  void lose(int peer, const std::string& why) {
    const bool known = std::any_of(lost_peers_.begin(), lost_peers_.end(), [&](const LostPeer& loss) { return loss.rank == peer; });
    if (!known) lost_peers_.push_back({peer, peer, why});
    close(peer);
  }

  // Sends nothing to this peer any more.
  void close(int peer) {
    peers_[peer].open = false;
    for (auto one = announced_.begin(); one != announced_.end();) {
      const std::shared_ptr<MpiTransfer> transfer = one->second.transfer;
      if (transfer->peer != peer) {
        ++one;
        continue;
      }
      one = announced_.erase(one);
      if (peers_[peer].said_bye) done_.fail(transfer, peer_has_left(peer, transfer->envelope));
    }
  }

  template <typename Pending>
  void run_while(Pending pending, Nanoseconds limit) {
    const Nanoseconds begun = clock_.now();
    Nanoseconds moved_at = begun;
    while (pending() && clock_.now() - begun < limit) {
      if (progress()) moved_at = clock_.now();
      rest(clock_.now() - moved_at);
    }
  }

  // Ends without losing a sent message: waits until all are received, says bye, waits a moment until the peers end too.
  void leave() noexcept try {
    // A sender that got a wake frame may be sending already and cannot stop.
    if (failed_) return run_while([this] { return endpoint_.receiving(); }, kFarewellDeadline);
    const auto sending = [this] { return endpoint_.sending() || !announced_.empty(); };
    run_while(sending, kFlushDeadline);
    for (int peer = 0; peer < size(); ++peer) {
      if (peers_[peer].open || peers_[peer].said_bye) write(peer, {.kind = Frame::Kind::bye}, nullptr);
    }
    run_while(sending, kFlushDeadline);
    run_while([this] { return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.open; }); }, kFarewellDeadline);
    int there = 0;
    for (const Peer& peer : peers_) there += peer.said_bye ? 1 : 0;
    if (there == size() - 1) endpoint_.set_all_done();
  } catch (...) {  // a destructor never throws
  }

  MpiOptions options_;
  base::RealClock clock_;
  Ledger ledger_;
  MpiEndpoint endpoint_;
  MpiRegions regions_{endpoint_, clock_};
  CompletionQueue done_;
  Inbox inbox_;
  std::vector<Peer> peers_;
  uint64_t announcements_ = 0;
  std::map<uint64_t, Announced> announced_;            // long messages that wait for their receiver
  std::map<std::pair<int, EnvelopeKey>, Frame> held_;  // the same, at the receiver
  uint64_t pulls_ = 0;
  std::multimap<Nanoseconds, std::weak_ptr<MpiTransfer>> timers_;
  std::function<void(int, const Envelope&)> tell_early_;
  std::vector<LostPeer> lost_peers_;
  bool failed_ = false;
  std::byte nothing_{};
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(MpiOptions options) { return std::make_unique<MpiTransport>(options); }

bool has_mpi() { return true; }

}  // namespace cairn::comm
