#pragma once
#include <filesystem>

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// For runs with a pipeline: draws the measured schedule of the last step on the ranks of the first pipeline into schedule.svg, and the
// planned schedule with the measured mean costs into schedule-planned.svg. Collective; rank 0 writes.
void draw_schedule(comm::World& world, const Job& job, const std::filesystem::path& out);

}  // namespace cairn::train
