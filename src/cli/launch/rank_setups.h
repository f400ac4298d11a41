// How the ranks of a run come together: started here, on several machines, or by somebody else's launcher.
#pragma once
#include <string>
#include <vector>

#include "base/stop.h"
#include "base/terminal.h"
#include "cli/arguments.h"
#include "cli/launch/launcher.h"
#include "comm/net/transport.h"

namespace cairn::cli {

// Which of several machines this is, as the command line or Slurm says; refuses what does not fit together.
NodePlace node_place(const TrainArguments& a);

// The set-ups of the ranks that this process will start, once all machines have met. `config_fingerprint` is what must be the same on all
// of them.
std::vector<comm::NetSetup> meet_and_set_up(const TrainArguments& a, const NodePlace& place, const std::string& config_fingerprint,
                                            const base::Stop& stop, base::Terminal& terminal);

// The set-up of this process, which a launcher started as one rank of many.
comm::NetSetup join_launched(const TrainArguments& a, const Launch& launch, const std::string& config_fingerprint, const base::Stop& stop,
                             base::Terminal& terminal);

}  // namespace cairn::cli
