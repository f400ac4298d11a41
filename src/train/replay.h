#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/subset.h"
#include "train/report/run_starts.h"
#include "train/start.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

// The record of one step of a run, from its metrics and its list of starts.
struct StepOfRecord {
  std::filesystem::path run;
  int64_t step = 0;
  double loss = 0, gradient_norm = 0;
  std::string samples;           // checksum of the ids of its batch; empty: not in the record
  std::vector<int64_t> batches;  // for each step up to this one, the sampler's batch that it trained on
  std::vector<RunStart> starts;  // the starts before the step, never empty; the last one computed the step

  const RunStart& start() const { return starts.back(); }
};

// Reads recipe, metrics and starts of a run directory. Refuses a step that metrics.jsonl does not have, and names the steps that it has.
StepOfRecord read_step_of_record(const std::filesystem::path& run, int64_t step);

struct ReplayedSample {
  int64_t id = 0;
  int64_t tokens = 0;  // targets that count in the loss
  std::string text;    // empty unless ReplayOptions::text is set and the data is text
};

// The replayed step beside the recorded one.
struct Replayed {
  int64_t from = 0;  // the step whose snapshot it was started from; 0: from the beginning
  std::vector<ReplayedSample> samples;
  bool same_samples = true;  // true also if the record has no checksum
  double loss_then = 0, loss_now = 0, norm_then = 0, norm_now = 0;
  std::vector<std::string> differences;  // of machine, ranks, versions and data, in words

  bool equal() const;  // loss and gradient norm are bitwise identical
};

struct ReplayOptions {
  bool text = false;                                           // decode the samples
  data::Subset subset = {};                                    // the subset that the run was trained on (train::run)
  std::function<void(int64_t step, int64_t of)> on_step = {};  // called on rank 0
};

// Starts at the newest good snapshot before the step (or at the beginning), repeats the steps in between on the batches that they had,
// and runs the step. Writes nothing. Collective; `start` gives device and threads.
Replayed replay(comm::World& world, const StepOfRecord& record, Start start, const ReplayOptions& options = {});

}  // namespace cairn::train
