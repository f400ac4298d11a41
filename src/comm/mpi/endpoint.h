#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/completion.h"
#include "comm/ledger.h"

namespace cairn::comm {

// A payload that MPI moves between the memory of two ranks.
struct MpiPayload {
  bool outgoing = false;
  int peer = 0;
  uint64_t lane = 0;  // both ends use the same lane (an MPI tag); unique among those in flight between the two, one way
  std::byte* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<Transfer> transfer = {};  // null once it is withdrawn
  std::shared_ptr<void> owned = {};         // set where `data` is memory of our own
  std::optional<Ledger::Message> booking = {};
  int64_t parts_left = 0;
  std::string error = {};  // empty: success
};

// All that Cairn uses of MPI, in a communicator of its own: short frames, which arrive in order, and payloads, whose receive is posted
// before they are sent. The constructor waits for all ranks, withdraw() may wait; every other call returns at once.
class MpiEndpoint {
 public:
  struct Limits {
    std::chrono::nanoseconds meet_deadline{};
    int64_t frame_bytes = 0;  // the longest frame
    int64_t part_bytes = 0;
  };
  MpiEndpoint(const base::Clock& clock, Limits limits);
  ~MpiEndpoint();

  int rank() const;
  int size() const;
  bool oversubscribed() const;  // this machine has fewer cores than ranks

  void send_frame(int to, std::shared_ptr<std::byte[]> frame, int64_t bytes);
  struct ReceivedFrame {
    int from = 0;
    std::span<const std::byte> frame;  // valid until the next call
  };
  std::optional<ReceivedFrame> next_frame();

  void start(std::shared_ptr<MpiPayload> payload);
  std::vector<std::shared_ptr<MpiPayload>> ended();  // those that completed or failed since the last call
  bool sending() const;
  bool receiving() const;

  // Makes sure that nothing touches the memory of this transfer any more. Waits if MPI is moving its bytes. A payload that the sender may
  // have started is received all the same, into memory of our own.
  void withdraw(const Transfer& transfer);

  // All ranks have said bye, so that the destructor may free the communicator.
  void set_all_done();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn::comm
