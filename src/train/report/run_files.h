// The files of a run directory that are written once: at the start, or at the end of a run.
#pragma once
#include <filesystem>
#include <vector>

#include "train/report/report.h"
#include "train/start.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// Makes the run directory with recipe.toml and plan.json. In a resumed run, metrics of steps after progress.steps_done are removed.
void open_run_folder(const std::filesystem::path& out, const Job& job);
// Writes recipe.toml and plan.json again if they are gone, because a snapshot cannot be resumed without them.
void restore_run_folder(const std::filesystem::path& out, const Job& job);

// Writes ledger.json, trace.json and report.html from the data of all ranks. Collective.
void write_run_files(comm::World& world, Job& job, const Start& start, const Result& result);

// Generates log.samples texts that begin with log.prompt, for the report. Collective; rank 0 gets the texts.
std::vector<ReportData::Sample> write_samples(Job& job);

// For runs with a pipeline: draws the measured schedule of the last step on the ranks of the first pipeline into schedule.svg, and the
// planned schedule with the measured mean costs into schedule-planned.svg. Collective; rank 0 writes.
void draw_schedule(comm::World& world, const Job& job, const std::filesystem::path& out);

}  // namespace cairn::train
