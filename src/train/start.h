#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>

#include "base/log.h"
#include "train/islands/remote_islands.h"

namespace cairn::base {
class Terminal;
}

namespace cairn::parallel {
struct Plan;
}

namespace cairn::train {

// What surrounds a run and is not part of its recipe: where it writes, where it starts from, what it runs on, who watches.
struct Start {
  std::filesystem::path out;  // the run directory; empty: nothing is written (jobs that train many times)
  bool resume = false;        // continue from the newest good snapshot in `out`, if there is one
  int64_t resume_step_last = std::numeric_limits<int64_t>::max();  // snapshots of later steps are passed over
  std::filesystem::path cache;                                     // where tokenised text is kept between runs; empty: nowhere
  std::string device = "cpu";                                      // cpu or cuda
  int threads = 1;                                                 // of this rank
  double seconds_before = 0;                                       // that passed before this process was started for the run
  std::shared_ptr<base::Terminal> terminal;                        // null: nobody watches
  std::shared_ptr<const parallel::Plan> plan = nullptr;            // how it is laid out; null: as the recipe's keys say
  RemoteIslandStart remote = {};                                   // where islands are started each by itself
};

// What a run came to.
struct Result {
  int64_t step = 0;          // completed
  double loss = 0;           // of the last step
  double held_out_loss = 0;  // of the last evaluation; NaN where there was none
  bool stopped = false;      // saved and ended before its last step, because it was asked to
};

}  // namespace cairn::train
