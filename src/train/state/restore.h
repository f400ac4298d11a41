#pragma once
#include <optional>
#include <string>

#include "snapshot/snapshot.h"

namespace cairn::base {
class Log;
}  // namespace cairn::base

namespace cairn::train {

struct Job;

// The contents of a snapshot of the job: parameters, optimizer and sync state by name, the progress of the run, and the files that other
// programs need to open the model. Collective; only the first rank of each step group gets a result. Tensors may be the live ones.
std::optional<snapshot::Contents> collect(Job& job);

// Loads a snapshot into the job. Refuses one of another seed, subset or reference model.
void restore(Job& job, base::Log& log, const snapshot::OpenSnapshot& found, const std::string& run_dir);

}  // namespace cairn::train
