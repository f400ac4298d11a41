#include "unlearn/delete_records.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "base/check.h"
#include "unlearn/records.h"
#include "unlearn/store_lock.h"
#include "unlearn/tombstones.h"

namespace cairn::unlearn {
namespace {

namespace fs = std::filesystem;

constexpr const char* kArtifactFacts = "artifact.json";

std::set<int64_t> as_set(const std::vector<int64_t>& records) { return {records.begin(), records.end()}; }

// Files of a folder: the facts first, without which the rest is not read.
std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (!entry.is_directory()) files.push_back(entry.path());
  std::ranges::sort(files, [](const fs::path& a, const fs::path& b) {
    return std::pair(a.filename() != kArtifactFacts, a) < std::pair(b.filename() != kArtifactFacts, b);
  });
  return files;
}

void remove_folder(const fs::path& folder, const base::Disk& disk) {
  for (const fs::path& file : files_of(folder))
    if (disk.remove(file) != 0 && errno != ENOENT)
      throw Error(Error::Kind::disk,
                  fmt::format("{}: cannot be removed: {}. The records are deleted; `cairn unlearn audit` will say what is "
                              "left.",
                              file.string(), std::strerror(errno)));
  std::error_code none;
  fs::remove_all(folder, none);
  disk.sync_folder(folder.parent_path());
}

// Artifacts that can never be live again: their slices have lost more records than they were trained without.
std::vector<fs::path> dead_artifacts(const Store& store, const DeletedCounts& deleted) {
  std::vector<fs::path> dead;
  for (const std::string& name : store.artifact_names()) {
    const std::optional<ArtifactName> parsed = parse_artifact_name(name);
    if (!parsed || live_name(parsed->shard, parsed->slices, deleted) != *parsed || !fs::exists(store.artifact(name) / kArtifactFacts))
      dead.push_back(store.artifact(name));
  }
  return dead;
}

// Of stages that are made of records that have been deleted since.
std::vector<fs::path> stale_work(const Store& store, const DeletedCounts& deleted) {
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(store.work())) {
    const std::optional<ArtifactName> parsed = artifact_of_work(entry.path());
    if (entry.is_directory() && parsed && live_name(parsed->shard, parsed->slices, deleted) != *parsed) stale.push_back(entry.path());
  }
  return stale;
}

int64_t stored_deleted(const Store& store, const std::set<int64_t>& deleted) {
  std::set<std::pair<int64_t, int64_t>> touched;
  const Partition partition = store.spec().partition();
  for (const int64_t record : deleted) {
    const Place place = partition.place_of(record);
    touched.insert({place.shard, place.slice});
  }
  int64_t found = 0;
  for (const auto& [shard, slice] : touched)
    for (const StoredRecord& record : read_slice(store, {shard, slice}, {})) found += deleted.contains(record.id);
  return found;
}

}  // namespace

Purged leftovers(const Store& store) {
  const std::set<int64_t> deleted = as_set(store.deleted());
  const DeletedCounts counts = store.deleted_by_slice();
  return {.records = stored_deleted(store, deleted),
          .artifacts = static_cast<int64_t>(dead_artifacts(store, counts).size()),
          .copies = static_cast<int64_t>(stale_work(store, counts).size())};
}

Purged purge(const Store& store, const base::Disk& disk) {
  const std::set<int64_t> deleted = as_set(store.deleted());
  const DeletedCounts counts = store.deleted_by_slice();
  Purged purged;
  for (const fs::path& folder : stale_work(store, counts)) remove_folder(folder, disk), ++purged.copies;
  for (const fs::path& folder : dead_artifacts(store, counts)) remove_folder(folder, disk), ++purged.artifacts;
  purged.records = purge_records(store, deleted, disk);
  return purged;
}

Deleted delete_records(const Store& store, std::span<const int64_t> records, const std::function<void(const Deleted&)>& logged,
                       const base::Disk& disk) {
  for (const int64_t record : records)
    if (record < 0 || record >= store.spec().records)
      base::fail_input("record {}: {} has records 0 to {}. Nothing was deleted.", record, store.folder().string(),
                       store.spec().records - 1);
  const StoreLock lock(store);
  Deleted done;
  std::set<int64_t> known = as_set(store.deleted());
  for (const int64_t record : records) (known.insert(record).second ? done.records : done.before).push_back(record);
  if (!done.records.empty()) append_tombstones(store.tombstones(), done.records, disk);
  done.served = served_by(store);
  if (logged) logged(done);
  done.purged = purge(store, disk);
  return done;
}

}  // namespace cairn::unlearn
