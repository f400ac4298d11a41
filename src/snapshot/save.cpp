// The commit protocol of a snapshot. At every moment, also after a crash, a reader finds the old snapshot or the new one, whole.
//   1. Write all files into .writing-step-N-PID beside the others. Each file: temporary name, write, fsync, rename.
//   2. Write manifest.json last: names, lengths and checksums of all files. fsync the folders.
//   3. Rename the folder to step-N: the commit. fsync the parent. A snapshot of the same step is renamed to step-N.old first; if we die
//      between the two renames, readers find it under that name.
//   4. Remove snapshots that the retention does not keep: rename to .removing-*, then delete, so that no reader meets half of one.
// Readers (open.cpp) take a folder only if every file has the length and checksum of the manifest, and otherwise the next older one.
// Leftovers of crashes (.writing-*, .removing-*) are deleted by the next save.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <unistd.h>

#include "base/check.h"
#include "base/files.h"
#include "base/text.h"
#include "snapshot/folder.h"
#include "snapshot/manifest.h"
#include "snapshot/snapshot.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr const char* kWriting = ".writing-";
constexpr const char* kRemoving = ".removing-";
constexpr int64_t kSpareBytes = 1 << 16;  // the manifest and the folders' own blocks

void check_call(int result, const char* doing, const fs::path& path) {
  if (result != 0) throw Error(Error::Kind::disk, fmt::format("{}: cannot {}: {}", path.string(), doing, std::strerror(errno)));
}

// The folder being written. Deleted unless it was put in place.
class StagingFolder {
 public:
  explicit StagingFolder(fs::path path) : path_(std::move(path)) { base::make_folder(path_ / "training"); }
  ~StagingFolder() {
    std::error_code ignored;  // the next save deletes what remains
    if (!placed_) fs::remove_all(path_, ignored);
  }
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;

  const fs::path& path() const { return path_; }
  void placed() { placed_ = true; }

 private:
  fs::path path_;
  bool placed_ = false;
};

void clear_leftovers(const fs::path& folder) {
  std::vector<fs::path> leftovers;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kWriting) || name.starts_with(kRemoving)) leftovers.push_back(entry.path());
  }
  std::error_code ignored;  // harmless if they remain
  for (const fs::path& path : leftovers) fs::remove_all(path, ignored);
}

void check_names(const Contents& contents) {
  CAIRN_CHECK(contents.step >= 0, "snapshot of step {}", contents.step);
  for (const auto& [file, text] : contents.texts) {
    if (!is_file_name(file))
      base::fail_input("snapshot file \"{}\": a name is letters, digits, '.', '_' and '-', with training/ before it or not", file);
    if (!section_of_file(file).empty()) base::fail_input("snapshot file \"{}\": a text cannot have the name of a section of tensors", file);
  }
}

void check_space(const fs::path& folder, const Contents& contents, const base::Disk& disk) {
  int64_t needed = kSpareBytes;
  for (const auto& [section, tensors] : contents.tensors) needed += safetensors_bytes(tensors);
  for (const auto& [file, text] : contents.texts) needed += static_cast<int64_t>(text.size());
  const int64_t free = disk.free_bytes(folder);
  if (free < 0 || free >= needed) return;
  throw Error(
      Error::Kind::disk,
      fmt::format(
          "{}: no room for the snapshot of step {}: it needs {} bytes ({}), {} bytes ({}) are free; earlier snapshots are untouched",
          folder.string(), contents.step, needed, base::human_bytes(needed), free, base::human_bytes(free)));
}

void write_files(const fs::path& folder, const Contents& contents, const base::Disk& disk) {
  Manifest manifest{.step = contents.step, .version = contents.version, .files = {}};
  for (const auto& [section, tensors] : contents.tensors) {
    const std::string file = file_of_section(section);
    manifest.files[file] = write_safetensors(folder / file, tensors, disk);
  }
  for (const auto& [file, text] : contents.texts) {
    base::write_atomically(folder / file, text, disk);
    manifest.files[file] = {.bytes = static_cast<int64_t>(text.size()), .checksum = base::checksum(text)};
  }
  check_call(disk.sync_folder(folder / "training"), "sync", folder / "training");
  base::write_atomically(folder / kManifestFile, format_manifest(manifest), disk);
  check_call(disk.sync_folder(folder), "sync", folder);
}

// Whether every file exists with its length. Checksums, which need all bytes, are left to open().
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

// Renames first, so that no reader meets a half removed snapshot. If removal fails, the next save tries again.
void drop(const fs::path& path, const base::Disk& disk) {
  const fs::path away = path.parent_path() / (kRemoving + path.filename().string());
  std::error_code ignored;
  fs::remove_all(away, ignored);
  if (disk.rename(path, away) == 0) fs::remove_all(away, ignored);
}

// Renames `from` to `to`; an existing `to` becomes .old first.
void put_in_place(const fs::path& from, const fs::path& to, const base::Disk& disk) {
  const fs::path old = to.string() + ".old";
  bool replaces = fs::exists(to);
  if (replaces && fs::exists(old)) {  // an earlier save died here
    replaces = looks_whole(to);
    drop(replaces ? old : to, disk);
  }
  if (replaces) check_call(disk.rename(to, old), "move aside", to);
  if (disk.rename(from, to) != 0) {
    const int error = errno;
    if (replaces) disk.rename(old, to);
    errno = error;
    check_call(-1, "put in place", to);
  }
  check_call(disk.sync_folder(to.parent_path()), "sync", to.parent_path());
}

// Counts only complete snapshots, so that damaged ones never push out the last good one.
void prune(const std::string& run_dir, int64_t step, const Retention& keep, const base::Disk& disk) {
  int64_t kept = 0;
  for (const StepFolder& folder : step_folders(run_dir)) {
    const bool ours = folder.step == step && !folder.replaced;
    if (ours) {
      ++kept;
    } else if (folder.step >= step || kept >= keep.newest) {
      drop(folder.path, disk);
    } else if (looks_whole(folder.path)) {
      ++kept;
    }
  }
}

}  // namespace

std::string save(const std::string& run_dir, const Contents& contents, const Retention& keep, const base::Disk& disk) {
  check_names(contents);
  const fs::path parent = snapshots_folder(run_dir);
  const fs::path place = step_folder(run_dir, contents.step);
  base::make_folder(parent);
  clear_leftovers(parent);
  check_space(parent, contents, disk);
  StagingFolder staging(parent / fmt::format("{}{}-{}", kWriting, place.filename().string(), ::getpid()));
  write_files(staging.path(), contents, disk);
  put_in_place(staging.path(), place, disk);
  staging.placed();
  prune(run_dir, contents.step, keep, disk);
  return place;
}

}  // namespace cairn::snapshot
