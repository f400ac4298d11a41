// Which ranks' gradients count in a step: decided as they arrive, without waiting for the slow ones.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "comm/mailbox.h"
#include "sync/coding/gradient_code.h"

namespace cairn::comm {
class Group;
class World;
}  // namespace cairn::comm

namespace cairn::train {

// In every step each rank says when its gradient is ready, by a message to the first rank. That one closes the step when all are ready, or
// when those that are ready suffice to decode and (1 + mu) times the first rank's time has passed. It tells all ranks the weights of the
// gradients; whoever is not ready by then gives up. One per run; used by the world's thread.
class LiveSet {
 public:
  LiveSet(comm::World& world, comm::Group& ranks, const sync::GradientCode& code, double mu);
  ~LiveSet();

  void begin(int64_t step);
  // Whether the step is closed. Handles messages that have come, and does not wait.
  bool closed();
  // Waits for so long, or until the step is closed.
  void pause(std::chrono::nanoseconds length);
  void ready();  // this rank's gradient is complete
  // The weight of each rank's gradient, and which ranks were ready. Waits, at most the deadline of the group.
  const sync::Decoding& wait();
  const std::vector<char>& live() const { return live_; }

 private:
  bool is_host() const { return me_ == 0; }
  void listen();
  void take_messages();
  void note_ready(int rank, int64_t step);
  void close_if_due();
  std::chrono::nanoseconds cut_off() const;
  void announce();
  void wait_for_event(std::chrono::nanoseconds until);

  comm::World& world_;
  comm::Group& ranks_;
  const sync::GradientCode& code_;
  const double mu_;
  const int me_, size_;
  comm::Mailbox mailbox_;
  comm::Node node_;
  comm::Request message_;  // the next one: "ready" at the host, "live" elsewhere
  int64_t step_ = 0;
  bool closed_ = true;
  std::chrono::nanoseconds begun_{}, first_{-1};  // first_: when the first rank was ready; -1: none is
  std::vector<char> ready_, live_;
  sync::Decoding decoding_;
  std::vector<std::pair<int, int64_t>> early_;  // ready for a step that has not begun here: rank, step
};

}  // namespace cairn::train
