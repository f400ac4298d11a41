#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace cairn::base {

// The few system calls that writing a file needs, so that tests can make them fail. Each returns what the call returns, with errno
// set on failure; nothing throws. Implementations may be used from several threads.
class Disk {
 public:
  virtual ~Disk() = default;
  virtual int create(const std::filesystem::path& path) const = 0;              // for writing: a descriptor, or -1, also if it exists
  virtual int append(const std::filesystem::path& path) const = 0;              // created if missing, written at its end
  virtual int64_t write(int file, std::span<const std::byte> bytes) const = 0;  // may be short
  virtual int sync(int file) const = 0;
  virtual int close(int file) const = 0;
  virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to) const = 0;
  virtual int remove(const std::filesystem::path& path) const = 0;
  virtual int sync_folder(const std::filesystem::path& folder) const = 0;
  virtual int64_t free_bytes(const std::filesystem::path& folder) const = 0;  // to an ordinary user; -1 if unknown
};

// The disk of this machine. It keeps no state.
const Disk& real_disk();

}  // namespace cairn::base
