#pragma once
// The inside of islands_chaos.h: islands_chaos.cpp has the processes, islands_chaos_network.cpp what goes on between them.
#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <semaphore>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include "base/random.h"
#include "comm/world.h"
#include "study/islands_chaos.h"
#include "sync/islands/link.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::study::chaos {

using Nanoseconds = std::chrono::nanoseconds;

inline constexpr Nanoseconds kTick = std::chrono::milliseconds(20);

// Thrown through an island that is killed. Not a cairn::Error, so that nobody handles it.
struct ChaosKill {};

// The log of an island on a disk that may be slow. It outlives the process.
class ChaosDisk final : public comm::RaftStore {
 public:
  comm::RaftState load() override { return state_; }
  void save(const comm::RaftState& state) override {
    if (slow) slow();
    state_ = state;
    if (saved) saved(state_);
  }
  std::function<void()> slow;
  std::function<void(const comm::RaftState&)> saved;

 private:
  comm::RaftState state_;
};

// What an island's snapshot holds.
struct ChaosSnapshot {
  int64_t step = 0;
  std::vector<at::Tensor> parameters, global, elements, state;
};

class ChaosWorld {
 public:
  ChaosWorld(uint64_t seed, const ChaosFaults& faults, const std::string& kind);
  ~ChaosWorld();
  ChaosWorld(const ChaosWorld&) = delete;
  ChaosWorld& operator=(const ChaosWorld&) = delete;

  ChaosResult run();

 private:
  friend class ChaosLink;
  struct Island {
    // The process.
    bool runs = false, killed = false, blocked = true;
    std::unique_ptr<comm::SiteChannels> core;
    std::deque<sync::IslandLink::Message> inbox;
    Nanoseconds stopped_until{}, wake_at{}, called_at{-1};
    bool wakes_on_message = false;
    Nanoseconds step_time{};
    std::vector<std::thread> threads;  // of all its starts
    // What lasts.
    uint64_t incarnation = 0;
    ChaosDisk disk;
    std::optional<ChaosSnapshot> snapshot;
    // What it came to.
    std::optional<uint64_t> ended_well;  // its final model
    std::string error;
    int64_t last_round = -1;  // the step of its last round with others
    std::binary_semaphore go{0};
  };
  struct Stream {  // of a pair; side 0 is the lower island
    std::array<bool, 2> open{}, ending{};
    std::array<std::deque<std::pair<Nanoseconds, comm::SiteFrame>>, 2> sent;
  };

  uint64_t below(uint64_t n) { return random_.below(drawn_++, n); }
  int count() const { return static_cast<int>(islands_.size()); }
  int any() { return static_cast<int>(below(islands_.size())); }
  Island& at(int island) { return islands_[static_cast<size_t>(island)]; }
  bool awake(int island) { return at(island).runs && at(island).stopped_until <= now_; }
  size_t place(int from, int to) const { return static_cast<size_t>(from) * islands_.size() + static_cast<size_t>(to); }
  Stream& stream_of(int a, int b) { return streams_[place(std::min(a, b), std::max(a, b))]; }
  static size_t side_of(int island, int other) { return island < other ? 0 : 1; }
  void fail(const std::string& what) {
    if (result_.violation.empty()) result_.violation = fmt::format("at {:.2f} s: {}", static_cast<double>(now_.count()) * 1e-9, what);
  }

  // Threads: one of them runs at a time.
  void resume(int island);
  void yield(int island);
  void pass_time(int island, Nanoseconds time);

  // Processes.
  void start(int island);
  void kill(int island);
  void end_streams(int island);
  void live(int island);
  void train(int island, comm::World& world);
  void note_model(int island, sync::Sync& rule, int64_t step);
  void check_disk(int island, const comm::RaftState& state);

  // The network.
  void disturb();
  void storm();
  void advance(Nanoseconds time);
  void connect(int a, int b);
  void deliver(int from, int to);
  void exchange_frames(int island);
  void check_waits();
  void heal();
  bool all_ended();
  bool any_ended_well();

  base::Random random_;
  uint64_t drawn_ = 0;
  const ChaosFaults faults_;
  std::vector<Island> islands_;
  std::vector<Stream> streams_;
  std::vector<char> cut_;
  sync::SyncOptions rule_;
  int founders_ = 0;
  bool slow_disks_ = false, slow_links_ = false, healed_ = false;
  std::map<std::pair<uint64_t, int>, int> votes_;  // on disk: by term and island
  uint64_t last_term_ = 0;                         // of which a disk has entries
  Nanoseconds now_{}, healed_at_{};
  std::map<std::pair<int64_t, int64_t>, uint64_t> models_;  // by epoch and step
  std::set<std::pair<int64_t, int64_t>> rounds_;            // by epoch and step
  std::map<int64_t, int> short_rounds_;                     // after all was healed: by step, islands that were missing
  std::binary_semaphore done_{0};
  ChaosResult result_;
};

}  // namespace cairn::study::chaos
