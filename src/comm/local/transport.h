#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "comm/flight/recorder.h"
#include "comm/local/event.h"
#include "comm/local/local.h"
#include "comm/transport.h"

namespace cairn::comm {

// One rank's end of the simulated network. The rank's thread uses it while it runs; while the rank waits, the thread that drives the
// network uses it under the network's lock. Never both at once.
class LocalTransport final : public Transport {
 public:
  LocalTransport(LocalNetwork::Net& net, int rank, int size);
  ~LocalTransport() override;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Completion send(int to, const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override;
  Completion recv(int from, const Envelope& envelope, void* into, int64_t bytes) override;
  Completion recv_view(int from, const Envelope& envelope, int64_t bytes) override;
  Completion expose(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override;
  Completion pull(int peer, const Envelope& envelope, int64_t offset, void* into, int64_t bytes, PullMode mode, Dtype dtype) override;
  LinkFacts link_facts(const std::vector<int>& ranks) const override;
  Completion timer(Nanoseconds at) override;
  void cancel(Transfer& transfer) override;
  bool drive(const std::function<bool()>& done, Nanoseconds until, const std::string& doing) override;
  void poll() override {}  // the network advances only while all ranks wait
  FlightRecorder* recorder() override { return &recorder_; }
  const std::vector<LostPeer>& lost_peers() const override { return lost_peers_; }
  bool left(int rank) const override { return left_[rank]; }
  void fail(const std::string& reason, int culprit) override;
  void on_early(std::function<void(int, const Envelope&)> tell) override { tell_early_ = std::move(tell); }
  std::shared_ptr<void> allocate(int64_t bytes) override;
  const base::Clock& clock() const override { return clock_; }
  Ledger& ledger() override { return ledger_; }

  // The network's side.
  void arrive(const LocalEvent& event);   // an event for this rank
  void arrived(const LocalEvent& event);  // an event of this rank has arrived at its destination
  void run_done() { done_.run(); }
  int64_t cancelled() const { return cancelled_; }
  bool has_posts() const { return !posts_.empty(); }
  std::vector<LocalEvent> take_posts() { return std::exchange(posts_, {}); }
  base::VirtualClock& own_clock() { return clock_; }

 private:
  void post(LocalEvent event);
  Completion ask(int from, std::shared_ptr<LocalTransfer> transfer);
  void deliver(const std::shared_ptr<LocalTransfer>& transfer, const LocalEvent& event);
  void answer(const LocalEvent& pull, const LocalTransfer& region);
  void peer_left(int peer);
  void lose(const LostPeer& loss);
  void lose_and_tell(const LostPeer& loss);

  LocalNetwork::Net& net_;
  int rank_;
  int size_;
  base::VirtualClock clock_;
  FlightRecorder recorder_{make_flight_memory(), clock_, Nanoseconds(0), rank_, size_};
  Ledger ledger_;
  CompletionQueue done_;
  std::vector<LocalEvent> posts_;  // since the network last collected them
  uint64_t posted_ = 0;
  int64_t cancelled_ = 0;
  bool failed_ = false;
  std::unordered_map<PeerKey, std::vector<std::shared_ptr<LocalTransfer>>, PeerKeyHash> wanted_;  // usually one per key
  std::unordered_map<PeerKey, std::vector<LocalEvent>, PeerKeyHash> early_;
  std::map<EnvelopeKey, std::shared_ptr<LocalTransfer>> exposed_;
  std::vector<LocalEvent> early_pulls_;
  std::vector<bool> left_;
  std::vector<LostPeer> lost_peers_;
  std::function<void(int, const Envelope&)> tell_early_;
};

}  // namespace cairn::comm
