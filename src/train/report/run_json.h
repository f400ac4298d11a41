// The JSON that a run writes and reads again: how far it came, and what its ranks sent.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cairn::train {

// Where a run stands, as in training/state.json of a snapshot.
struct RunState {
  int64_t step = 0;
  int64_t tokens = 0;
  double seconds = 0;
  std::optional<int64_t> seed = {};        // nothing where the file does not say
  std::optional<uint64_t> subset = {};     // the hash of what it is trained on
  std::optional<uint64_t> reference = {};  // the checksum of the frozen weights that its steps compare with
  int64_t updates_skipped = 0;             // of the steps
  int64_t rollbacks = 0;
  int64_t batches_passed = 0;  // that rollbacks left out
  int64_t next_sample = 0;     // written for people, never read: a resumed run finds it from the step
};
std::string to_json(const RunState& state);
// Refuses what is not the state of a run; `file` is what the message calls it.
RunState parse_run_state(const std::string& json, const std::string& file);

// The ledgers of all ranks as one. Each holds what its rank sent, so the pairs are disjoint and the purposes add up.
std::string merge_ledgers(const std::vector<std::string>& ledgers);

struct Traffic {
  std::string purpose;
  double bytes = 0;
  double messages = 0;
};
// What a ledger says was sent, the most first; nothing where it cannot be read.
std::vector<Traffic> traffic_of(const std::string& ledger);

}  // namespace cairn::train
