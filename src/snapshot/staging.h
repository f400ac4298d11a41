// The folder in which a snapshot is written before it gets its name. save.cpp has the protocol.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace cairn::base {
class Disk;
}

namespace cairn::snapshot {

class Remover;

// RUN/snapshots/.writing-step-N-PID. Deleted unless it was put in place.
class StagingFolder {
 public:
  // Makes the folder, and deletes what crashes left beside it. Throws Error::Kind::disk where `bytes` do not fit. `disk` is borrowed.
  StagingFolder(const std::string& run_dir, int64_t step, int64_t bytes, const base::Disk& disk);
  ~StagingFolder();
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Renames it to step-N and returns that path: the commit. A snapshot of the same step becomes step-N.old.
  std::string put_in_place();

 private:
  const base::Disk& disk_;
  std::filesystem::path place_, path_;
  bool placed_ = false;
};

// Writes the manifest, after all other files of the folder, and syncs the folder.
void write_manifest(const std::filesystem::path& folder, const std::string& text, const base::Disk& disk);

// Whether every file exists with its length. Checksums, which need all bytes, are left to open().
bool looks_whole(const std::filesystem::path& folder);

// Removes a snapshot. Renames first, so that no reader meets a half removed snapshot. If removal fails, the next save tries again. With a
// remover this returns once it is renamed.
void drop(const std::filesystem::path& path, const base::Disk& disk, Remover* remover = nullptr);

}  // namespace cairn::snapshot
