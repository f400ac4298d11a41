#pragma once
#include <filesystem>

#include "train/start.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// Makes the run directory with recipe.toml and plan.json; metrics of steps that a resumed run has not done are cut away.
void open_run_folder(const std::filesystem::path& out, const Job& job);

// ledger.json, trace.json, report.html, from what was booked on all ranks. Collective.
void write_run_files(comm::World& world, Job& job, const Start& start, const Result& result);

}  // namespace cairn::train
