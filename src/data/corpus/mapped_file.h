// A file of ours seen as memory: pages come when they are read and may be dropped again by the system.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace cairn::data {

// For files that nobody cuts short while they are read: token files, which are written whole and renamed. Immutable.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // missing, unreadable, not a regular file: bad_input
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace cairn::data
