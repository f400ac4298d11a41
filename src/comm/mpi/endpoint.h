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

// A payload on its way, straight between two ranks' memory.
struct MpiPayload {
  bool outgoing = false;
  int peer = 0;
  uint64_t lane = 0;  // both ends name the same one; no two under way between them, one way, are the same
  std::byte* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<Transfer> transfer = {};  // whom it is for; none once withdrawn
  std::shared_ptr<void> owned = {};         // memory of our own, where that is what `data` is
  std::optional<Ledger::Message> booking = {};
  int64_t parts_left = 0;
  std::string error = {};  // empty: it went well
};

// What we use of MPI, in a communicator of its own: short frames that arrive in order, and payloads that the receiver asked for. All calls
// return at once, but for the constructor, which waits for all ranks, and withdraw.
class MpiEndpoint {
 public:
  struct Limits {
    std::chrono::nanoseconds meet_deadline{};
    int64_t frame_bytes = 0;  // of the longest frame
    int64_t part_bytes = 0;
  };
  MpiEndpoint(const base::Clock& clock, Limits limits);
  ~MpiEndpoint();

  int rank() const;
  int size() const;
  bool crowded() const;  // more ranks on this machine than cores for them

  void send_frame(int to, std::shared_ptr<std::byte[]> frame, int64_t bytes);
  struct ReceivedFrame {
    int from = 0;
    std::span<const std::byte> frame;  // until the next call
  };
  std::optional<ReceivedFrame> next_frame();

  void start(std::shared_ptr<MpiPayload> payload);
  std::vector<std::shared_ptr<MpiPayload>> ended();  // since the last call
  bool sending() const;
  bool receiving() const;

  // After it, nothing touches the memory of this transfer. Waits where its bytes are just moving. What was promised to the sender is
  // received all the same, into memory of our own.
  void withdraw(const Transfer& transfer);

  // All ranks have said that they are done with it.
  void agree_to_end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn::comm
