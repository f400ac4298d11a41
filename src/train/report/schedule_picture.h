#pragma once
#include <filesystem>

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// Where the run was a pipeline: draws when each rank of the first pipeline did what in the last step, into schedule.svg beside the planned
// one, schedule-planned.svg, whose costs are the means of the measured ones. All ranks call it; rank 0 writes.
void draw_schedule(comm::World& world, const Job& job, const std::filesystem::path& out);

}  // namespace cairn::train
