#pragma once
#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/link_model.h"
#include "comm/local/event.h"
#include "comm/local/local.h"
#include "comm/local/transport.h"

namespace cairn::comm {

// The simulated network: a discrete-event simulation that advances only while every rank waits (or is frozen, or has ended). network.cpp
// explains it.
class LocalNetwork::Net {
 public:
  Net(int ranks, LocalOptions options);

  int size() const { return static_cast<int>(ranks_.size()); }
  const LocalOptions& options() const { return options_; }
  std::unique_ptr<Transport> make_transport(int rank);
  void gone(LocalTransport& transport);  // a rank ends: keeps its last events and its ledger
  void end(int rank);
  bool wait(int rank, const std::function<bool()>& done, Nanoseconds until, const std::string& doing);
  void before_collective(int rank, int64_t number);  // called on the rank's thread: triggers faults
  Ledger ledger() const;
  std::string event_log() const;
  std::vector<bool> faults_fired() const;
  std::vector<int64_t> cancelled() const;

 private:
  enum class Status { running, waiting, frozen, ended };
  // A binary semaphore: blocks a rank's thread until the network lets it run on.
  struct Gate {
    std::mutex lock;
    std::condition_variable opened;
    bool open = false;
    void open_gate();
    void pass();
  };
  struct Held {
    LocalEvent event;
    bool incoming = true;
  };
  struct Rank {
    int index = 0;
    Status status = Status::running;
    bool in_wait = false;  // it is in wait(), or was when it froze; the next fields are its arguments
    const std::function<bool()>* done = nullptr;
    Nanoseconds until{};
    uint64_t waits = 0;
    std::string doing;
    LocalTransport* transport = nullptr;
    bool in_time = true;
    bool killed = false;
    std::optional<Error> stuck;
    Nanoseconds pause{};     // sleeps this long before each collective
    std::vector<Held> held;  // events that arrived while it was frozen
    Gate gate;
    std::vector<LocalEvent> last_posts;
    Ledger ledger;
    int64_t cancelled = 0;
  };
  struct Entry {  // of the queue; stale if the event was rescheduled
    Nanoseconds time;
    uint64_t order;
    int from;
    uint64_t number;
    uint32_t index;
    bool operator<(const Entry& b) const { return std::tie(time, order, from, number) > std::tie(b.time, b.order, b.from, b.number); }
  };
  struct Deadline {
    Nanoseconds until;
    int rank;
    uint64_t wait;
    bool operator<(const Deadline& b) const { return std::tie(until, rank, wait) > std::tie(b.until, b.rank, b.wait); }
  };
  struct Line {  // an ordered pair of ranks
    Nanoseconds last_arrival{};
    int64_t messages = 0;
    std::optional<std::pair<uint32_t, uint64_t>> overtaken;  // index and number of a message that the next one overtakes
  };
  struct Partition {
    int fault = -1;
    std::vector<bool> these, those;
    std::vector<uint32_t> held;
  };

  // Order and time (network.cpp).
  void set_status(Rank& rank, Status status);
  int count(Status status) const { return counts_[static_cast<size_t>(status)]; }
  void progress_and_unlock(std::unique_lock<std::mutex>& guard);  // progress() if nobody runs; then wakes the resumed ranks
  void progress();                                                // simulates until a rank may run on
  void take_posts();
  void schedule(LocalEvent&& event);
  uint32_t push(LocalEvent&& event);
  void put_in_queue(uint32_t index);
  void reschedule(uint32_t index, Nanoseconds time);
  const LocalEvent* next_event();
  uint32_t pop();
  void happen();
  bool enter_card(uint32_t index);
  void deliver(uint32_t index);
  void step(Rank& rank, Nanoseconds time);
  void time_out(Nanoseconds at);
  void deadlock();
  void resume(Rank& rank, bool in_time);
  std::optional<Nanoseconds> next_deadline();
  void release(uint32_t index);
  void log(const LocalEvent& event, std::string_view remark);

  // Faults (network_faults.cpp).
  void plan_faults();
  void post_network_event(LocalEvent::Kind kind, int fault, Nanoseconds time);
  void strike_message(LocalEvent& event, int64_t number);
  void strike_this_message(LocalEvent& event, int fault);
  void strike(int fault, Nanoseconds time);
  void kill(Rank& rank, Nanoseconds time);
  void freeze(Rank& rank, int fault, Nanoseconds time);
  void thaw(int rank, Nanoseconds time);
  void part(int fault, Nanoseconds time);
  void heal(int fault, Nanoseconds time);
  Partition* between(int from, int to);
  void fall_silent(int rank, int at_rank, Nanoseconds time, bool to_all);
  bool noticed(const Fault& fault) const;  // it lasts longer than lost_after
  void apply(const LocalEvent& event);

  LocalOptions options_;
  mutable std::mutex lock_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::array<int, 4> counts_{};
  std::vector<int> resumed_;  // ranks that may run on, once their gates are open
  Shaper shaper_;
  std::vector<Line> lines_;  // [from, to]
  std::deque<LocalEvent> pool_;
  std::vector<uint32_t> unused_;
  std::priority_queue<Entry> queue_;
  std::priority_queue<Deadline> deadlines_;
  Nanoseconds now_{};
  uint64_t network_events_ = 0;
  std::vector<bool> fired_;
  std::vector<bool> armed_;  // hits the next message of its pair
  std::vector<Partition> partitions_;
  int thawing_ = 0;        // number of ranks that are frozen for a while
  bool silenced_ = false;  // a message was dropped or held: if all wait, it is no deadlock
  std::string log_;
};

}  // namespace cairn::comm
