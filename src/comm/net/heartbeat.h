#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "comm/net/transport.h"
#include "comm/shm/segment.h"

namespace cairn::comm {

// Heartbeats between machines: UDP datagrams that say that this process runs and which operation its rank started last. They are
// encrypted and authenticated with the run's key, and replays are ignored. What a remote rank says is kept on a StatusBoard here, as if its
// memory were shared.
//
// One thread calls send and receive; any thread may read the boards.
class Heartbeat {
 public:
  explicit Heartbeat(const NetSetup& setup);  // owns setup.heartbeat_fd from now on
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void send(const StatusBoard& own);  // to all ranks of other machines
  void receive();                     // reads all datagrams that have arrived
  // The board of a rank on another machine; null for a rank of this one. Its beat is 0 until the first datagram of that rank.
  const StatusBoard* board(int rank) const { return boards_[static_cast<size_t>(rank)].get(); }
  // An upper bound on the age of what that board says.
  std::chrono::nanoseconds age(int rank) const;

 private:
  struct Peers;
  int fd_;
  int rank_;
  uint64_t sent_ = 0;
  std::vector<std::unique_ptr<StatusBoard>> boards_;
  base::RealClock clock_;
  std::vector<uint64_t> heard_;  // by rank: the number of its last datagram
  std::vector<std::atomic<int64_t>> heard_at_;
  std::unique_ptr<Peers> peers_;
};

}  // namespace cairn::comm
