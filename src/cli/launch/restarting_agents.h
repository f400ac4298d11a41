// Agents that start their ranks again after a loss (train.on_loss = restart or shrink).
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/log.h"
#include "cli/arguments.h"
#include "cli/launch/launcher.h"
#include "cli/launch/run_directory.h"
#include "elastic/diagnosis/options.h"
#include "elastic/keeper.h"
#include "train/agent.h"
#include "train/generations.h"

namespace cairn::cli {

// The keeper of this machine, which ranks start by calling it. `address`: at which other machines reach this one. Keep it until the run
// ends.
elastic::KeeperHandle give_keeper(train::AgentOptions& options, const std::string& address, base::Log& log);

// What the agents of all machines share.
struct RestartingRun {
  LaunchArguments launch;
  train::LossPolicy policy;
  elastic::DiagnosisOptions diagnosis;
  std::vector<std::string> command_line;
  std::function<void(const RunDirectory&, int ranks)> show_header;
};

// The agent of the only machine. The run directory is held already.
int run_lone_agent(const RestartingRun& run, const ClaimedRun& claimed);

// One of several machines: how they find and recognise each other, and what they check.
struct GroupPlace {
  NodePlace place;
  std::string config_fingerprint;
  RunRequest request;
  std::function<std::string(int ranks, bool shrunk)> check_layout;  // why so many ranks cannot train; empty: they can
};
int run_group_agent(const RestartingRun& run, const GroupPlace& group);

}  // namespace cairn::cli
