// Makes the connection set-ups of a run's ranks: started here, on several machines, or by another launcher.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/stop.h"
#include "base/terminal.h"
#include "cli/arguments.h"
#include "cli/launch/launcher.h"
#include "comm/link_model.h"
#include "comm/net/key.h"
#include "comm/net/transport.h"

namespace cairn::cli {

// This machine's place among several, from the command line or Slurm. Refuses options that contradict each other.
NodePlace node_place(const LaunchArguments& a);

// The options of a rank's transport. Refuses --interfaces and --channels that leave nothing to plan.
comm::NetOptions net_options(const LaunchArguments& a, std::optional<comm::LinkModel> links, const base::Stop& stop);

// Waits until all machines have met, and returns the set-ups of the ranks that this process will start. `config_fingerprint` must be the
// same on all machines.
std::vector<comm::NetSetup> meet_and_set_up(const LaunchArguments& a, const NodePlace& place, const std::string& config_fingerprint,
                                            const base::Stop& stop, base::Terminal& terminal);

// The key that machines share, for agents that start ranks again after a loss.
comm::Key shared_key(const LaunchArguments& a);

// The set-up of this process, which a launcher started as one rank. Local rank 0 makes the set-ups of its machine and hands them out.
comm::NetSetup join_launched(const LaunchArguments& a, const Launch& launch, const std::string& config_fingerprint, const base::Stop& stop,
                             base::Terminal& terminal);

}  // namespace cairn::cli
