#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "comm/local.h"
#include "comm/transport.h"

namespace cairn::comm {

using Nanoseconds = std::chrono::nanoseconds;
using EnvelopeKey = std::tuple<uint64_t, uint64_t, uint32_t>;
using PeerKey = std::pair<int, EnvelopeKey>;  // who, and which message or region

// What a rank asked for.
struct LocalTransfer final : Transfer {
  enum class Kind { send, recv, expose, pull, timer };
  Kind kind = Kind::send;
  Envelope envelope;
  Purpose purpose = Purpose::control;
  void* data = nullptr;  // null once cancelled
  int64_t bytes = 0;
  Take take = Take::replace;
  Dtype dtype = Dtype::u8;
};

// Something that travels on the virtual network, or a timer.
struct LocalEvent {
  enum class Kind { message, pull, reply, timer, lost, left };
  Kind kind = Kind::message;
  int from = 0;
  int to = 0;
  Nanoseconds posted{};  // the sender's time
  Nanoseconds time{};    // of arrival
  uint64_t order = 0;    // decides among equal times: a hash of the seed
  uint64_t number = 0;   // of the post, at its sender
  Envelope envelope = {};
  Purpose purpose = Purpose::control;
  std::shared_ptr<std::byte[]> data = {};  // a copy: the sender may be gone when it arrives
  int64_t bytes = 0;
  int64_t offset = 0;                       // of a pull
  std::weak_ptr<LocalTransfer> sent = {};   // at the sender of a message
  std::weak_ptr<LocalTransfer> asked = {};  // at the rank that waits for a reply or timer
  Loss loss = {};

  Ledger::Message booking() const { return {from, to, bytes, purpose, posted, time}; }
};

// One rank's end of the network. Used by the rank's thread while it runs, and under the network's lock by whoever moves the network while
// the rank waits; never by both at once.
class LocalTransport final : public Transport {
 public:
  LocalTransport(LocalNetwork::Net& net, int rank, int size);
  ~LocalTransport() override;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Completion send(int to, const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override;
  Completion recv(int from, const Envelope& envelope, void* into, int64_t bytes) override;
  Completion expose(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override;
  Completion pull(int peer, const Envelope& envelope, int64_t offset, void* into, int64_t bytes, Take take, Dtype dtype) override;
  Completion timer(Nanoseconds at) override;
  void cancel(Transfer& transfer) override;
  bool drive(const std::function<bool()>& done, Nanoseconds until, const std::string& doing) override;
  void poll() override {}  // the network moves only while all ranks wait
  const std::vector<Loss>& losses() const override { return losses_; }
  void fail(const std::string& reason, int culprit) override;
  void on_early(std::function<void(int, const Envelope&)> tell) override { tell_early_ = std::move(tell); }
  std::shared_ptr<void> allocate(int64_t bytes) override;
  const base::Clock& clock() const override { return clock_; }
  Ledger& ledger() override { return ledger_; }

  // The network's side.
  void arrive(const LocalEvent& event);   // here
  void arrived(const LocalEvent& event);  // elsewhere, from here
  void run_done() { done_.run(); }
  std::vector<LocalEvent> take_posts() { return std::exchange(posts_, {}); }
  base::VirtualClock& own_clock() { return clock_; }

 private:
  void post(LocalEvent event);
  void deliver(const std::shared_ptr<LocalTransfer>& transfer, const LocalEvent& event);
  void answer(const LocalEvent& pull, const LocalTransfer& region);
  void peer_left(int peer);

  LocalNetwork::Net& net_;
  int rank_;
  int size_;
  base::VirtualClock clock_;
  Ledger ledger_;
  DoneQueue done_;
  std::vector<LocalEvent> posts_;  // since the network last moved
  uint64_t posted_ = 0;
  bool failed_ = false;
  std::map<PeerKey, std::deque<std::shared_ptr<LocalTransfer>>> wanted_;
  std::map<PeerKey, std::deque<LocalEvent>> early_;
  std::map<EnvelopeKey, std::shared_ptr<LocalTransfer>> exposed_;
  std::vector<LocalEvent> early_pulls_;
  std::vector<bool> left_;
  std::vector<Loss> losses_;
  std::function<void(int, const Envelope&)> tell_early_;
};

// The virtual network itself: who waits for what, and what is on the way. It moves only while every rank waits (or stands still, or has
// ended), driven by the last rank that came to wait. Events within one latency of the first cannot cause one another, so all of them happen
// before the ranks they concern run on, in parallel.
class LocalNetwork::Net {
 public:
  Net(int ranks, LocalOptions options);

  int size() const { return static_cast<int>(ranks_.size()); }
  const LocalOptions& options() const { return options_; }
  std::unique_ptr<Transport> make_transport(int rank);
  void gone(LocalTransport& transport);  // keeps its last posts and its ledger
  void end(int rank);
  void freeze(int rank);
  bool wait(int rank, const std::function<bool()>& done, Nanoseconds until, const std::string& doing);
  Ledger ledger() const;
  std::string event_log() const;

 private:
  enum class Status { running, waiting, frozen, ended };
  struct Rank {
    Status status = Status::running;
    LocalTransport* transport = nullptr;
    const std::function<bool()>* done = nullptr;
    Nanoseconds until{};
    std::string doing;
    bool in_time = true;
    std::optional<Error> stuck;
    std::condition_variable wake;
    std::vector<LocalEvent> last_posts;
    Ledger ledger;
  };
  struct Later {
    bool operator()(const LocalEvent& a, const LocalEvent& b) const {
      return std::tie(a.time, a.order, a.from, a.number) > std::tie(b.time, b.order, b.from, b.number);
    }
  };
  struct Link {
    Nanoseconds free{};  // when the last message has left
    Nanoseconds last_arrival{};
    uint64_t messages = 0;
  };

  void move();  // until somebody may run on
  void take_posts();
  void schedule(LocalEvent event);
  void happen();
  void time_out(Nanoseconds at);
  void step(Rank& rank, Nanoseconds time);
  void deadlock();
  void resume(Rank& rank, bool in_time);
  bool anyone(Status status) const;
  std::optional<Nanoseconds> next_deadline() const;
  void log(const LocalEvent& event);

  LocalOptions options_;
  mutable std::mutex lock_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<std::pair<int, int>, Link> links_;
  std::priority_queue<LocalEvent, std::vector<LocalEvent>, Later> events_;
  std::string log_;
};

}  // namespace cairn::comm
