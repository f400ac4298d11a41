#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace cairn::sync {

// Rounds between islands for step methods that make, apply and record the messages themselves (Sync::message_rounds). Every island sends
// one short message in a round, and all islands get the same list of messages that count. The history of a run is its rounds: an island
// that joins gets the rounds that it lacks, and no parameters.
//
// All functions are collective over the ranks of an island.
class MessageRounds {
 public:
  virtual ~MessageRounds() = default;

  // The rounds that an island has applied, as the step keeps them.
  struct History {
    std::function<int64_t()> rounds;                       // how many
    std::function<uint64_t()> epoch;                       // that the last one belongs to
    std::function<std::vector<std::byte>()> records;       // all of them, on the first rank; empty elsewhere
    std::function<void(std::span<const std::byte>)> take;  // brings this island to the end of another history
    uint64_t origin = 0;  // identifies what the first round is applied to, and how: islands with another one are refused
  };
  // Before Sync::begin.
  virtual void attach(History history) = 0;

  struct Outcome {
    bool decided = false;  // else the round has no result here, and Sync::take_new_position or Sync::should_stop says how to go on
    uint64_t epoch = 0;
    std::vector<std::vector<std::byte>> messages;  // by island; empty: its message does not count
  };
  // The round of this step. `message` is read on the first rank.
  virtual Outcome exchange(int64_t step, std::vector<std::byte> message) = 0;
  // The step has applied the round: `record` is what History::records has of it now. Islands that join get it.
  virtual void applied(int64_t step, std::span<const std::byte> record) = 0;
};

}  // namespace cairn::sync
