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

// Signs of life between machines: datagrams that say that this process is not stopped and what its rank started last, sealed with the
// run's key so that nobody else can make, read or repeat them. What the others say is kept on a board for each, as if their memory were
// shared.
//
// One thread sends and receives; boards may be looked at by others.
class Heartbeat {
 public:
  explicit Heartbeat(const NetSetup& setup);  // takes its heartbeat_fd over
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void send(const StatusBoard& own);  // to every rank elsewhere
  void receive();                     // all that has come
  // Of a rank on another machine; else null. Its beat is 0 as long as nothing was heard of it.
  const StatusBoard* board(int rank) const { return boards_[static_cast<size_t>(rank)].get(); }
  // How old what that board says may be.
  std::chrono::nanoseconds age(int rank) const;

 private:
  struct Peers;
  int fd_;
  int rank_;
  uint64_t sent_ = 0;
  std::vector<std::unique_ptr<StatusBoard>> boards_;
  base::RealClock clock_;
  std::vector<uint64_t> heard_;  // the number of the last one, by rank
  std::vector<std::atomic<int64_t>> heard_at_;
  std::unique_ptr<Peers> peers_;
};

}  // namespace cairn::comm
