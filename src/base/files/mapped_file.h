// A file's bytes in memory, read only, without a copy.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"

namespace cairn::base {

// Maps a whole regular file; pages are read when they are touched. Unmapped when the last owner lets go. If the file becomes shorter, the
// process that reads what is gone ends with exit code 2 and names the file (mapped_fault.h). So map only files that are replaced by
// renaming and never rewritten in place: snapshots and token files.
class MappedFile {
 public:
  // A file that is missing, unreadable or not a regular file throws `kind`: corrupt_file for a file that a snapshot promises, bad_input
  // for one that a user names.
  static std::shared_ptr<const MappedFile> open(const std::string& path, Error::Kind kind = Error::Kind::corrupt_file);
  // A part of an open file, memory of another process for example. `offset` is a multiple of the page size; `name` stands for the path.
  static std::shared_ptr<const MappedFile> map(int file, int64_t offset, int64_t bytes, std::string name);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes);
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace cairn::base
