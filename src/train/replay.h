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

// What a run wrote down of one of its steps, and of the way there.
struct StepOfRecord {
  std::filesystem::path run;
  int64_t step = 0;
  double loss = 0, gradient_norm = 0;
  std::string samples;           // checksum of the ids of its batch; empty: not written down
  std::vector<int64_t> batches;  // which of the sampler's batches each step up to this one trained on
  std::vector<RunStart> starts;  // never empty; the last one that lies before the step is the one it was computed by

  const RunStart& start() const { return starts.back(); }
};

// Reads recipe, metrics and starts of a run directory. Refuses a step that metrics.jsonl does not have, naming those that it has.
StepOfRecord read_step_of_record(const std::filesystem::path& run, int64_t step);

struct ReplayedSample {
  int64_t id = 0;
  int64_t tokens = 0;  // that were counted
  std::string text;    // empty where it was not asked for, or the data are not text
};

// The step once more, beside what it was.
struct Replayed {
  int64_t from = 0;  // the step whose snapshot it was started from; 0: from the beginning
  std::vector<ReplayedSample> samples;
  bool same_samples = true;  // as far as they were written down
  double loss_then = 0, loss_now = 0, norm_then = 0, norm_now = 0;
  std::vector<std::string> differences;  // what is not as it was then

  bool equal() const;  // both numbers are the same bits
};

struct ReplayOptions {
  bool text = false;                                           // decode the samples
  data::Subset subset = {};                                    // what the run was trained on, where a job handed it one
  std::function<void(int64_t step, int64_t of)> on_step = {};  // called on rank 0
};

// Starts at the newest good snapshot before the step (or at the beginning), goes through the steps between on the batches that they had,
// and takes the step. Writes nothing. On every rank of the world at once; `start` says device and threads.
Replayed replay(comm::World& world, const StepOfRecord& record, Start start, const ReplayOptions& options = {});

}  // namespace cairn::train
