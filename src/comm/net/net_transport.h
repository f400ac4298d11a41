#pragma once
// The inside of the net transport, shared by transport.cpp (the Transport interface, waiting, leaving) and sockets.cpp (frames that go out
// and come in). One thread uses it; it has no thread of its own but the one that sends heartbeats (liveness.h).
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/flight/recorder.h"
#include "comm/link_model.h"
#include "comm/net/async_stream.h"
#include "comm/net/channel_sockets.h"
#include "comm/net/liveness.h"
#include "comm/net/peer.h"
#include "comm/net/regions.h"
#include "comm/net/transport.h"
#include "comm/shm/shared_memory.h"

namespace cairn::comm {

class NetTransport final : public Transport, private FrameSink, private LinkOwner {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  NetTransport(NetSetup setup, NetOptions options);
  ~NetTransport() override;

  int rank() const override { return setup_.rank; }
  int size() const override { return setup_.size; }
  Completion send(int to, const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override;
  Completion recv(int from, const Envelope& envelope, void* into, int64_t bytes) override;
  Completion recv_view(int from, const Envelope& envelope, int64_t bytes) override;
  Completion expose(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override;
  Completion pull(int peer, const Envelope& envelope, int64_t offset, void* into, int64_t bytes, PullMode how, Dtype dtype) override;
  LinkFacts link_facts(const std::vector<int>& ranks) const override;
  ShmGroup* shm_group(const std::vector<int>& ranks, uint64_t group) override;
  // Many pieces in flight hide a socket's latency; in shared memory a piece is what is copied at once.
  Chunking chunking(const std::vector<int>&) const override { return {.bytes = kSharedPartBytes, .in_flight = 16}; }
  Completion timer(Nanoseconds at) override;
  void cancel(Transfer& transfer) override;
  bool spin(const std::function<bool()>& done) override;
  bool drive(const std::function<bool()>& done, Nanoseconds until, const std::string&) override;
  void poll() override;
  void publish_operation(const Envelope& starting) override;
  std::optional<Envelope> last_started(int other) const override { return liveness_ ? liveness_->last_started(other) : std::nullopt; }
  Nanoseconds status_age(int other) const override { return liveness_ ? liveness_->status_age(other) : Nanoseconds(0); }
  FlightRecorder* recorder() override { return recorder_.get(); }
  const std::vector<LostPeer>& lost_peers() const override { return lost_peers_; }
  bool left(int other) const override { return peers_[other].said_bye && !peers_[other].open && !in_nic(other); }
  void fail(const std::string& reason, int culprit) override;
  void on_early(std::function<void(int, const Envelope&)> tell) override { inbox_.on_early(std::move(tell)); }
  std::shared_ptr<void> allocate(int64_t bytes) override;
  const base::Clock& clock() const override { return clock_; }
  Ledger& ledger() override;

 private:
  // Waiting and leaving (transport.cpp).
  static std::shared_ptr<NetTransfer> make_transfer(NetTransfer::Kind kind, int peer, const Envelope& envelope);
  Completion ask(int from, std::shared_ptr<NetTransfer> transfer);
  LinkOwner& owner() { return *this; }
  SharedLink* link_to(int peer) const { return shared_ ? shared_->link(peer) : nullptr; }
  bool progress_shared();
  bool progress_shared(int peer);
  void rest(Nanoseconds limit);
  void check_liveness(Nanoseconds now);
  void lose(int peer, const std::string& why);
  bool is_lost(int peer) const;
  template <typename Pending>
  void run_while(Pending pending, Nanoseconds limit);
  void start_recorder(const std::shared_ptr<SharedSegment>& segment);
  void flush(Nanoseconds limit);
  void leave() noexcept;

  // LinkOwner: what links in shared memory ask for (sockets.cpp).
  bool may_keep(int peer, int64_t bytes) const override;
  std::shared_ptr<std::byte[]> early_memory(int peer, int64_t bytes) override;
  void sent(const std::shared_ptr<Transfer>& transfer, const Ledger::Message& booking) override { written(transfer, booking); }
  void wake(int peer) override { send_frame(peer, {.kind = Frame::Kind::wake}, nullptr, nullptr, nullptr); }
  void distrust(int peer, const char* why) override { lost_peers_.push_back({peer, peer, why, /*tainted=*/true}); }

  // Where a peer has several connections (sockets.cpp).
  void add_channels(int peer, std::vector<Connection> connected);
  PeerChannels* channels_to(int peer) const { return channels_[static_cast<size_t>(peer)].get(); }

  // Frames on sockets (sockets.cpp).
  void send_frame(int to, const Frame& frame, const void* data, std::shared_ptr<std::byte[]> owned, std::shared_ptr<Transfer> transfer);
  Pace pace_of(int to, int64_t bytes, int plane);
  void wake_when_released(int peer);
  void arm_read(int peer);
  void arm_write(int peer);
  void readable(int rank);
  void writable(int rank);
  void end(NetPeer& peer, const std::string& reason);
  std::optional<PayloadTarget> place(int from, const Frame& frame) override;
  void on_payload(int from, const Frame& frame, PayloadTarget target) override;
  void through_nic(int from, const Frame& frame, PayloadTarget target);
  bool in_nic(int from) const;
  void leave_nic();
  void deliver(int from, const Frame& frame, PayloadTarget target);
  void written(const std::shared_ptr<Transfer>& transfer, const Ledger::Message& booking) override;

  NetSetup setup_;
  NetOptions options_;
  base::RealClock clock_;
  Ledger ledger_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  std::vector<asio::ip::tcp::socket> sockets_;
  std::vector<NetPeer> peers_;
  std::vector<std::unique_ptr<PeerChannels>> channels_;  // by rank; null: its NetPeer has the only connection
  std::vector<int> planes_;                              // by rank: that of the only connection
  CompletionQueue done_;
  Inbox inbox_;
  std::shared_ptr<std::vector<int64_t>> early_bytes_ = std::make_shared<std::vector<int64_t>>();  // of unexpected messages, by peer
  std::unique_ptr<SharedMemory> shared_;                                                          // null: sockets only
  std::unique_ptr<FlightRecorder> recorder_;
  std::unique_ptr<PeerLiveness> liveness_;  // null: no peer can be observed
  std::optional<Shaper> shaper_;            // set: links are slowed down
  // A message that arrived on a shaped link while the model of this rank's NIC is still busy with earlier ones.
  struct InNic {
    Nanoseconds at;
    int from;
    Frame frame;
    PayloadTarget target;
  };
  std::deque<InNic> in_nic_;
  bool far_ = false;  // some ranks are on other machines
  NetRegions regions_;
  std::vector<LostPeer> lost_peers_;
  bool failed_ = false;
  std::byte nothing_{};
};

}  // namespace cairn::comm
