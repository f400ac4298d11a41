#pragma once
#include <filesystem>
#include <memory>

#include "snapshot/staging.h"
#include "train/build.h"
#include "train/state/part_save.h"

namespace cairn::train {

// Saves a snapshot of a job that is alone in its step group, on this thread.
inline void save_now(Job& job, const std::filesystem::path& run_dir, const base::Disk& disk) {
  RankSnapshot saved = collect(job);
  auto staging = std::make_unique<snapshot::StagingFolder>(run_dir.string(), job.progress.steps_done, saved.bytes, disk);
  const std::string folder = staging->path().string();
  PartSave save({.run_dir = run_dir.string(),
                 .folder = folder,
                 .rank = 0,
                 .ranks = 1,
                 .keep = job.config.settings.snapshot.keep,
                 .staging = std::move(staging),
                 .saved = std::move(saved),
                 .disk = disk});
  save.write();
  save.commit();
}

}  // namespace cairn::train
