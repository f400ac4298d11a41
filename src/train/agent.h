#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/stop.h"
#include "comm/net/transport.h"
#include "elastic/diagnosis/options.h"

namespace cairn::train {

struct AgentOptions {
  std::vector<comm::NetSetup> setups = {};  // one for each rank to start; the agent closes their file descriptors
  std::vector<std::string> argv;            // the command of each rank: the program's path, then its arguments
  std::vector<std::pair<std::string, std::string>>
      env;  // added to each rank's environment, beside CAIRN_RANK, CAIRN_LOCAL_RANK, CAIRN_WORLD_SIZE, CAIRN_SETUP_FD
  // The number of islands that step separately. Each has the same number of ranks, in rank order. If an island loses a rank, the other
  // islands go on.
  int islands = 1;
  std::chrono::nanoseconds grace = std::chrono::seconds(60);          // from a requested stop until ranks are killed
  std::chrono::nanoseconds failure_grace = std::chrono::seconds(10);  // from the first rank's failure until the rest are killed
  // Ranks start with SIGTERM and SIGINT blocked, so that a stop waits until the rank handles it. The rank's program must unblock them.
  bool hold_stop = false;
  // Ranks that are lost are started again: the others end at once, because nothing that they would still do counts.
  bool end_at_once = false;
  std::function<bool()> over = {};      // asked often: whether the ranks must end because another machine has lost one
  std::vector<int> inherited_fds = {};  // beside the set-up's: the ranks inherit them, this process keeps them
  // Whether and how the agent looks for the rank or link that holds up the run (diagnosis/rank_diagnosis.h).
  elastic::DiagnosisOptions diagnosis = {.enabled = false};
};

// The rank whose loss or failure ended the others.
struct LostRank {
  int rank = 0;
  int64_t pid = 0;
  int code = 0;              // the exit code that this failure has (docs/reference/exit-codes.md)
  int signal = 0;            // that killed it; 0: it ended by itself
  bool frozen = false;       // it stood still, and was killed for that
  bool wrong_input = false;  // it refused its input, or could not be started: it would do so again
  bool consequence = false;  // it ended because it had lost another one, and nothing is known of that one here
  std::string how;           // "was killed by signal 9 (SIGKILL)"
  double at = 0;             // Unix time of its end; of a frozen one: of its last sign of life
};

// How the ranks of this machine have ended.
struct RanksEnded {
  int code = 0;                   // as run_ranks returns it
  std::optional<LostRank> cause;  // none: all ended well, or another machine's loss ended them
  bool stopped = false;           // a stop was requested meanwhile
  bool over = false;              // AgentOptions::over ended them
  double at = 0;                  // Unix time at which the last one had ended
};

// Starts the ranks, waits for them, and says how they ended.
RanksEnded start_and_watch_ranks(const AgentOptions& options, base::Log& log, const base::Stop& stop);

// Starts the ranks as child processes, waits for them, and logs how each ended. A rank gets its setup through an inherited file descriptor,
// because other users can read arguments and environment. Ranks die with this process. A requested stop is passed on to all ranks once. A
// rank that stands still (stopped, frozen) is killed as soon as another rank has failed because of it.
// Returns the exit code of this process: 0, the code of the first rank that failed, or 4 if a rank was killed. With several islands it is
// 0 if at least one island finished.
int run_ranks(const AgentOptions& options, base::Log& log, const base::Stop& stop);

// The rank's side: reads the setup from the inherited file descriptor (the number in CAIRN_SETUP_FD) and closes it.
comm::NetSetup inherited_setup(int setup_fd);

}  // namespace cairn::train
