// The commit protocol of a snapshot. At every moment, also after a crash, a reader finds the old snapshot or the new one, whole.
//   1. Write all files into .writing-step-N-PID beside the others. Each file: temporary name, write, fsync, rename.
//   2. Write manifest.json last: names, lengths and checksums of all files. fsync the folders.
//   3. Rename the folder to step-N: the commit. fsync the parent. A snapshot of the same step is renamed to step-N.old first; if we die
//      between the two renames, readers find it under that name.
//   4. Remove snapshots that the retention does not keep: rename to .removing-*, so that no reader meets half of one, then delete; in a
//      run on a thread of its own (Remover).
// Readers (open.cpp) take a folder only if every file has the length and checksum of the manifest, and otherwise the next older one.
// Leftovers of crashes (.writing-*, .removing-*) are deleted by the next save.
#include <filesystem>

#include "base/check.h"
#include "base/files.h"
#include "snapshot/folder.h"
#include "snapshot/manifest.h"
#include "snapshot/rank_part.h"
#include "snapshot/snapshot.h"
#include "snapshot/staging.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

void check_names(const Contents& contents) {
  CAIRN_CHECK(contents.step >= 0, "snapshot of step {}", contents.step);
  for (const auto& [file, text] : contents.texts) {
    if (!is_file_name(file))
      base::fail_input("snapshot file \"{}\": a name is letters, digits, '.', '_' and '-', with training/ before it or not", file);
    if (!section_of_file(file).empty()) base::fail_input("snapshot file \"{}\": a text cannot have the name of a section of tensors", file);
  }
}

int64_t bytes_of(const Contents& contents) {
  int64_t bytes = 0;
  for (const auto& [section, tensors] : contents.tensors) bytes += safetensors_bytes(tensors);
  for (const auto& [file, text] : contents.texts) bytes += static_cast<int64_t>(text.size());
  return bytes;
}

// `written`: files that lie in the folder already.
void write_files(const fs::path& folder, const Contents& contents, std::map<std::string, FileRecord> written, const base::Disk& disk) {
  Manifest manifest{.step = contents.step, .version = contents.version, .files = std::move(written)};
  for (const auto& [section, tensors] : contents.tensors) {
    const std::string file = file_of_section(section);
    manifest.files[file] = write_safetensors(folder / file, tensors, disk);
  }
  for (const auto& [file, text] : contents.texts) {
    base::write_atomically(folder / file, text, disk);
    manifest.files[file] = {.bytes = static_cast<int64_t>(text.size()), .checksum = base::checksum(text)};
  }
  const std::string text = format_manifest(manifest);
  if (const auto bytes = static_cast<int64_t>(text.size()); bytes > kManifestBytesMax)
    throw Error(Error::Kind::disk,
                fmt::format("{}: a manifest of {} bytes, at most {} are read", folder.string(), bytes, kManifestBytesMax));
  parse_manifest(text, folder / kManifestFile);  // what no reader takes is not committed
  write_manifest(folder, text, disk);
}

// Counts only complete snapshots, so that damaged ones never push out the last good one.
void prune(const std::string& run_dir, int64_t step, const Retention& keep, const base::Disk& disk) {
  int64_t kept = 0;
  for (const StepFolder& folder : step_folders(run_dir)) {
    const bool ours = folder.step == step && !folder.replaced;
    if (ours) {
      ++kept;
    } else if (folder.step >= step || kept >= keep.newest) {
      drop(folder.path, disk, keep.remover);
    } else if (looks_whole(folder.path)) {
      ++kept;
    }
  }
}

}  // namespace

std::string save(const std::string& run_dir, const Contents& contents, const Retention& keep, const base::Disk& disk) {
  check_names(contents);
  StagingFolder staging(run_dir, contents.step, bytes_of(contents), disk);
  write_files(staging.path(), contents, {}, disk);
  const std::string place = staging.put_in_place();
  prune(run_dir, contents.step, keep, disk);
  return place;
}

std::string commit_parts(const std::string& run_dir, StagingFolder& staging, Contents rest, const std::vector<Vote>& votes,
                         const Retention& keep, const base::Disk& disk) {
  CommittedParts parts = merge_votes(votes);
  if (!parts.pieces.empty()) {
    std::string& index = rest.texts[kPieceIndexFile] = format_piece_index(parts.pieces);
    parse_piece_index(index, staging.path() / kPieceIndexFile);  // what no reader takes is not committed
  }
  check_names(rest);
  write_files(staging.path(), rest, std::move(parts.files), disk);
  const std::string place = staging.put_in_place();
  prune(run_dir, rest.step, keep, disk);
  return place;
}

}  // namespace cairn::snapshot
