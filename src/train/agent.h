#pragma once
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/stop.h"
#include "comm/net/transport.h"

namespace cairn::train {

struct AgentOptions {
  std::vector<comm::NetSetup> setups = {};  // one for each rank to start; their files are taken over
  std::vector<std::string> argv;            // what each rank executes: the program's path, then its arguments
  std::vector<std::pair<std::string, std::string>>
      env;  // added to each rank's environment, beside CAIRN_RANK, CAIRN_LOCAL_RANK, CAIRN_WORLD_SIZE, CAIRN_SETUP_FD
  // Above 1: so many islands that train apart, of as many ranks each, in rank order. Where ranks of one are lost, the others go on.
  int islands = 1;
  std::chrono::nanoseconds grace = std::chrono::seconds(60);          // from the wish to stop until ranks are killed
  std::chrono::nanoseconds failure_grace = std::chrono::seconds(10);  // from the first rank's failure until the rest are killed
};

// Starts the ranks as processes of their own, outlives them, and reports how each ended. Ranks get their set-up through an inherited file
// (never arguments or environment, which others can read) and die with this process. A stop is passed on to all ranks once.
// The result is what this process should exit with: 0, the first failing rank's own code, or 4 where a rank was killed. With islands: 0 if
// one of them came to its end.
int run_ranks(const AgentOptions& options, base::Log& log, const base::Stop& stop);

// The rank's side: reads what the agent left in this file (the number in CAIRN_SETUP_FD) and closes it.
comm::NetSetup inherited_setup(int setup_fd);

}  // namespace cairn::train
