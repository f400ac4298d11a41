// Studies whose ranks work together: each is a process that runs the same function.
#pragma once
#include <functional>

#include "base/stop.h"
#include "cli/arguments.h"

namespace cairn::comm {
class World;
}

namespace cairn::lab {

// What one rank does; the first rank's text is printed at the end, or results.json of the study directory with --json.
using RankOfStudy = std::function<std::string(comm::World& world, int threads, const base::Stop& stop)>;

// Runs `body` on --nproc ranks: in this process for one, else as processes of this program.
int run_on_ranks(const cli::StudyArguments& a, const RankOfStudy& body);

}  // namespace cairn::lab
