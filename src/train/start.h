#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "base/log.h"
#include "train/islands/remote_islands.h"

namespace at {
class Tensor;
}
namespace cairn {
class Error;
}

namespace cairn::base {
class Stop;
class Terminal;
}  // namespace cairn::base

namespace cairn::parallel {
struct Plan;
}

namespace cairn::train {

class RestoreSource;
class MemorySnapshots;

// Scores fp32 [queries, passages] on the CPU, for queries and passages by their numbers in a retrieval set. A run calls it on one thread of
// its own.
using PassageScores = std::function<at::Tensor(std::span<const int64_t> queries, std::span<const int64_t> passages)>;

// What a run needs beside its recipe: output directory, snapshot to resume from, device, threads and terminal. The command line sets it.
struct Start {
  std::filesystem::path out;  // the run directory; empty: nothing is written (jobs that train many times)
  bool resume = false;        // continue from the newest good snapshot in `out`, if there is one
  int64_t resume_step_last = std::numeric_limits<int64_t>::max();  // snapshots of later steps are ignored
  std::filesystem::path cache;                                     // the folder of tokenized text; empty: it is not kept
  std::string device = "cpu";                                      // cpu or cuda
  int threads = 1;                                                 // CPU threads of this rank
  std::string day = {};                                            // on which the run starts, for chat templates: "2026-01-31"
  double seconds_before = 0;                                       // time between the command and the start of this process
  std::shared_ptr<base::Terminal> terminal;                        // for the progress line; null: none is shown
  std::shared_ptr<const parallel::Plan> plan = nullptr;            // decides the layout (given_plan.h); null: the recipe's keys do
  const base::Stop* stop = nullptr;                                // ends waits before the first step; null: that of run()
  std::shared_ptr<MemorySnapshots> keeper = nullptr;               // saves into memory that outlives this process; null: no agent
  RemoteIslandStart remote = {};                                   // used where each island is a separate world
  int generation = 0;  // how often an agent has started the ranks of this run: 1 at first; 0: they have no agent
  double lost_at = 0;  // Unix time of the loss that ended the generation before; 0: there was none
  PassageScores passage_scores = {};  // in place of retrieval.teacher; empty: that model
  std::shared_ptr<RestoreSource> memory = nullptr;  // asked for the state of a resumed run before the disk; null: the disk alone
};

// The context of an error of kind cancelled: a stop was requested before the first step, so that there is nothing to save.
inline constexpr const char* kBeforeFirstStep = "before the first step";
// Whether an error before the first step is only a consequence of a stop: requested here, or on a rank that said so when it left.
bool is_stop_before_first_step(const Error& error, const base::Stop& stop);

// The result of a run.
struct Result {
  int64_t step = 0;          // completed
  double loss = 0;           // of the last step
  double held_out_loss = 0;  // of the last evaluation; NaN if there was none
  bool stopped = false;      // a stop was requested: the run saved and ended before its last step
};

}  // namespace cairn::train
