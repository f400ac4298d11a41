#pragma once
#include <cstdint>
#include <string>

namespace cairn::base {
class Disk;
}

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// Saves the job's state as a snapshot of its run directory: parameters, optimizer and sync state by name, where the run stands, and
// what is needed to open the model elsewhere. Called on the rank that keeps the run directory.
std::string save(Job& job, const std::string& run_dir, const base::Disk& disk);

// Puts the newest good snapshot of a run directory, of step_last at most, into the job; false where there is none. All ranks call it, and
// must find the same one.
bool restore(Job& job, comm::World& world, const std::string& run_dir, int64_t step_last);

}  // namespace cairn::train
