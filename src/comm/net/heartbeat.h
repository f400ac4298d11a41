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
// memory were shared. Datagrams of strangers are dropped by a filter in the kernel, before they take a place in the socket's queue.
//
// One thread calls send and receive; any thread may read the boards.
class Heartbeat {
 public:
  explicit Heartbeat(const NetSetup& setup);  // owns setup.heartbeat_fd and the UDP files of the other interfaces from now on
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // To all ranks of other machines, on each interface that both have: the first copy that arrives counts.
  void send(const StatusBoard& own);
  // Reads datagrams that have arrived, a bounded number of them. False: there are more than the ranks of this run can have sent.
  bool receive();
  // The board of a rank on another machine; null for a rank of this one. Its beat is 0 until the first datagram of that rank.
  const StatusBoard* board(int rank) const { return boards_[static_cast<size_t>(rank)].get(); }
  // An upper bound on the age of what that board says.
  std::chrono::nanoseconds age(int rank) const;
  // How long ago receive() last found too many datagrams. Heartbeats may have been lost then, so silence says nothing about a rank.
  std::chrono::nanoseconds since_flood() const;

 private:
  struct Peers;
  bool receive_on(int fd);
  void take(const std::byte* bytes, size_t size);
  std::vector<int> fds_;  // by interface
  int rank_;
  uint64_t sent_ = 0;
  std::vector<std::unique_ptr<StatusBoard>> boards_;
  base::RealClock clock_;
  std::vector<uint64_t> heard_;  // by rank: the number of its last datagram
  std::vector<std::atomic<int64_t>> heard_at_;
  std::atomic<int64_t> flooded_at_;
  std::unique_ptr<Peers> peers_;
};

}  // namespace cairn::comm
