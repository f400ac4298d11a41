// Trainings of a study that may have been interrupted.
#pragma once
#include <filesystem>

namespace cairn::comm {
class World;
}

namespace cairn::study {

// Whether a run directory has the beginning of a training to go on from. All ranks return what the first one sees. Collective.
bool has_begun(comm::World& world, const std::filesystem::path& run);
// Likewise, whether a file is there.
bool has_state(comm::World& world, const std::filesystem::path& file);

}  // namespace cairn::study
