// A snapshot as a stream of bytes, for a copy in another run directory, on this machine or another. The stream holds the files of the
// manifest one after the other, in its order; the manifest travels before it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/files.h"
#include "base/files/mapped_file.h"
#include "snapshot/manifest.h"
#include "snapshot/staging.h"

namespace cairn::snapshot {

// Reads the stream of an open snapshot.
class CopyReader {
 public:
  explicit CopyReader(std::string folder);
  CopyReader(const CopyReader&) = delete;
  CopyReader& operator=(const CopyReader&) = delete;

  const std::string& manifest() const { return text_; }
  int64_t bytes() const { return total_bytes(manifest_); }
  // Reads the next bytes of the stream; so many must be left.
  void read(std::span<std::byte> into);

 private:
  std::string folder_, text_;
  Manifest manifest_;
  std::map<std::string, FileRecord>::const_iterator next_;
  std::shared_ptr<const base::MappedFile> file_;
  size_t offset_ = 0;  // in file_
};

// Writes a copy into a run directory, with the commit protocol of save.cpp: the snapshot appears whole or not at all. What arrives is not
// trusted: the manifest must have file names of a snapshot (manifest.h), and every file the checksum that the manifest says.
class CopyWriter {
 public:
  // Throws corrupt_file for a manifest that no snapshot has, Error::Kind::disk where there is no room. `disk` is borrowed.
  CopyWriter(const std::string& run_dir, const std::string& manifest, const base::Disk& disk);

  void write(std::span<const std::byte> bytes);  // the next of the stream
  std::string commit();                          // once, after the whole stream; returns the path of the snapshot

 private:
  void end_file();

  const base::Disk& disk_;
  std::string text_;
  Manifest manifest_;
  std::map<std::string, FileRecord>::const_iterator next_;  // the file that is written, or the next one
  StagingFolder staging_;
  std::optional<base::FileWriter> file_;
};

}  // namespace cairn::snapshot
