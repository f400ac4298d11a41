#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sync/message_rounds.h"
#include "sync/one_byte/replica.h"
#include "sync/one_byte/round_log.h"
#include "train/step.h"

namespace cairn::train {

struct Job;

// The rounds of one-byte training on this step group: a log on its first rank, and the weights that follow from base and log. All functions
// are collective over the step group.
class OneByteHistory {
 public:
  struct Parts {
    Job& job;
    sync::OneByteReplica& replica;
    std::filesystem::path log = {};                 // empty: the log is only in memory
    std::function<void()> load_start_weights = {};  // sets the weights of round 0
  };
  explicit OneByteHistory(Parts parts);

  // Opens the log and applies the rounds that the weights lack. `among_islands`: the log must have all rounds.
  void begin(const ResumePoint& from, bool among_islands);
  // Rounds that the weights have, skipped ones included: the next round's number.
  int64_t rounds() const;
  void set_rounds(int64_t rounds) { rounds_.fill_(rounds); }
  // Writes a round to the log, then applies it.
  void add(const sync::RoundRecord& record);
  // Sets the weights of round 0 and replays the log. Returns the first trained parameter that it changed on this rank; empty: none.
  std::string rebuild();
  // Of the trained weights, whatever the layout. The same on all ranks.
  uint64_t trained_hash() const;
  // What the islands of a run exchange.
  sync::MessageRounds::History for_islands();
  // For snapshots.
  mesh::NamedTensors state() { return {{"rounds", rounds_}}; }

 private:
  bool is_first() const;
  sync::RoundLogHeader header() const;
  uint64_t hash_of(bool only_trained) const;
  void open_log(const ResumePoint& from, bool among_islands);
  void apply(std::span<const std::byte> records);
  void take(std::span<const std::byte> records);

  Parts parts_;
  at::Tensor rounds_;                  // -1: a snapshot without it
  std::optional<sync::RoundLog> log_;  // on the first rank
  uint64_t origin_ = 0;
};

}  // namespace cairn::train
