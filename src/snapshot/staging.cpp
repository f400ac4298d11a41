#include "snapshot/staging.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unistd.h>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/text.h"
#include "snapshot/folder.h"
#include "snapshot/manifest.h"
#include "snapshot/remover.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr const char* kWriting = ".writing-";
constexpr const char* kRemoving = ".removing-";
constexpr int64_t kSpareBytes = 1 << 16;  // the manifest and the folders' own blocks

void check_call(int result, const char* doing, const fs::path& path) {
  if (result != 0) throw Error(Error::Kind::disk, fmt::format("{}: cannot {}: {}", path.string(), doing, std::strerror(errno)));
}

void clear_leftovers(const fs::path& folder) {
  std::vector<fs::path> leftovers;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kWriting) || name.starts_with(kRemoving)) leftovers.push_back(entry.path());
  }
  std::error_code ignored;  // harmless if they remain
  for (const fs::path& path : leftovers) fs::remove_all(path, ignored);
}

void check_space(const fs::path& folder, int64_t step, int64_t bytes, const base::Disk& disk) {
  const int64_t needed = bytes + kSpareBytes, free = disk.free_bytes(folder);
  if (free < 0 || free >= needed) return;
  throw Error(
      Error::Kind::disk,
      fmt::format(
          "{}: no room for the snapshot of step {}: it needs {} bytes ({}), {} bytes ({}) are free; earlier snapshots are untouched",
          folder.string(), step, needed, base::human_bytes(needed), free, base::human_bytes(free)));
}

}  // namespace

StagingFolder::StagingFolder(const std::string& run_dir, int64_t step, int64_t bytes, const base::Disk& disk)
    : disk_(disk), place_(step_folder(run_dir, step)) {
  const fs::path parent = place_.parent_path();
  base::make_folder(parent);
  clear_leftovers(parent);
  check_space(parent, step, bytes, disk);
  path_ = parent / fmt::format("{}{}-{}", kWriting, place_.filename().string(), ::getpid());
  base::make_folder(path_ / "training");
}

StagingFolder::~StagingFolder() {
  std::error_code ignored;  // the next save deletes what remains
  if (!placed_) fs::remove_all(path_, ignored);
}

std::string StagingFolder::put_in_place() {
  const fs::path old = place_.string() + ".old";
  bool replaces = fs::exists(place_);
  if (replaces && fs::exists(old)) {  // an earlier save died here
    replaces = looks_whole(place_);
    drop(replaces ? old : place_, disk_);
  }
  if (replaces) check_call(disk_.rename(place_, old), "move aside", place_);
  if (disk_.rename(path_, place_) != 0) {
    const int error = errno;
    if (replaces) disk_.rename(old, place_);
    errno = error;
    check_call(-1, "put in place", place_);
  }
  placed_ = true;
  check_call(disk_.sync_folder(place_.parent_path()), "sync", place_.parent_path());
  return place_;
}

void write_manifest(const fs::path& folder, const std::string& text, const base::Disk& disk) {
  check_call(disk.sync_folder(folder / "training"), "sync", folder / "training");
  base::write_atomically(folder / kManifestFile, text, disk);
  check_call(disk.sync_folder(folder), "sync", folder);
}

bool looks_whole(const fs::path& folder) {
  try {
    const std::string path = folder / kManifestFile;
    const Manifest manifest = parse_manifest(base::read_file(path, kManifestBytesMax), path);
    return std::all_of(manifest.files.begin(), manifest.files.end(), [&](const auto& file) {
      std::error_code error;
      return fs::file_size(folder / file.first, error) == static_cast<uintmax_t>(file.second.bytes) && !error;
    });
  } catch (const Error&) {
    return false;
  }
}

void drop(const fs::path& path, const base::Disk& disk, Remover* remover) {
  const fs::path away = path.parent_path() / (kRemoving + path.filename().string());
  std::error_code ignored;
  fs::remove_all(away, ignored);
  if (disk.rename(path, away) != 0) return;
  if (remover != nullptr) return remover->take(away);
  fs::remove_all(away, ignored);
}

}  // namespace cairn::snapshot
