// The JSON that a run writes and reads again: its progress (state.json) and the bytes that its ranks sent (ledger.json).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cairn::train {

// The progress of a run, as in training/state.json of a snapshot.
struct RunState {
  int64_t step = 0;
  int64_t tokens = 0;
  double seconds = 0;
  std::optional<int64_t> seed = {};        // empty: not in the file
  std::optional<uint64_t> subset = {};     // hash of the samples that it is trained on
  std::optional<uint64_t> reference = {};  // checksum of the reference model
  std::optional<uint64_t> masks = {};      // checksum of the masks of a pruned model
  int64_t updates_skipped = 0;             // steps without an update
  int64_t rollbacks = 0;
  int64_t batches_passed = 0;  // batches that rollbacks left out
  int64_t next_sample = 0;     // for people; a resumed run computes it from the step
  // Of an island that steps separately. In the file only if true.
  bool apart = false;             // it has trained without the others: its model is not theirs (Sync::apart)
  bool round_unfinished = false;  // it ended in a round without a result (Sync::round_unfinished)
};
std::string to_json(const RunState& state);
// Refuses text that is not the state of a run. `file` is its name in the error message.
RunState parse_run_state(const std::string& json, const std::string& file);

// Merges the ledgers of all ranks. Each holds what its rank sent, so the pairs are disjoint and the purposes add up.
std::string merge_ledgers(const std::vector<std::string>& ledgers);

struct Traffic {
  std::string purpose;
  double bytes = 0;
  double messages = 0;
};
// The traffic in a ledger by purpose, the most bytes first; empty if the ledger cannot be read.
std::vector<Traffic> traffic_of(const std::string& ledger);

}  // namespace cairn::train
