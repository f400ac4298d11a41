// A file's bytes in memory, read only, without a copy.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace cairn::base {

// Maps the whole of a regular file and lets go of it when the last owner does. A file that is cut short while it is mapped kills the
// process that reads it, which is why snapshots are replaced by renaming and never rewritten in place.
class MappedFile {
 public:
  // Throws corrupt_file if the file cannot be opened or is not a regular file.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes) : path_(std::move(path)), bytes_(bytes) {}
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace cairn::base
