#pragma once
#include <filesystem>

#include "train/start.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// Makes the run directory with recipe.toml and plan.json. In a resumed run, metrics of steps after progress.steps_done are removed.
void open_run_folder(const std::filesystem::path& out, const Job& job);

// Writes ledger.json, trace.json and report.html from the data of all ranks. Collective.
void write_run_files(comm::World& world, Job& job, const Start& start, const Result& result);

}  // namespace cairn::train
