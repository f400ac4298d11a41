#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "snapshot/snapshot.h"

namespace cairn::base {
class Log;
}  // namespace cairn::base

namespace cairn::comm {
class Group;
class World;
}  // namespace cairn::comm

namespace cairn::train {

struct Job;

// The job's state as a snapshot holds it: parameters, optimizer and sync state by name, where the run stands, and what is needed to open
// the model elsewhere. All ranks call it; only the first of each company has something. Tensors may be those that training works on.
std::optional<snapshot::Contents> collect(Job& job);

// The newest good snapshot of this company's run directory, of step_last at most and of a step that all companies have one of; nothing
// where there is none. All ranks call it, and those of a company must find the same one. Where companies have none in common, and one of
// them is past step `redone_most`, something was lost, and nothing begins anew: refused.
std::optional<snapshot::OpenSnapshot> find_snapshot(comm::World& world, const comm::Group& step_group, const std::string& run_dir,
                                                    int64_t step_last, int64_t redone_most = std::numeric_limits<int64_t>::max());

// Puts a snapshot into the job.
void restore(Job& job, base::Log& log, const snapshot::OpenSnapshot& found, const std::string& run_dir);

}  // namespace cairn::train
