#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace cairn::base {

inline constexpr int64_t kDirectBytes = 4096;

// The few system calls that writing a file needs, so that tests can make them fail. Each returns what the call returns, with errno
// set on failure; nothing throws. Implementations may be used from several threads.
class Disk {
 public:
  virtual ~Disk() = default;
  virtual int create(const std::filesystem::path& path) const = 0;       // for writing: a descriptor, or -1, also if it exists
  virtual int append(const std::filesystem::path& path) const = 0;       // created if missing, written at its end
  virtual int open_shared(const std::filesystem::path& path) const = 0;  // created if missing; several processes write into it
  // As open_shared, for direct I/O past the page cache: addresses, lengths and offsets must be multiples of kDirectBytes. -1 where the
  // file system has none.
  virtual int open_direct(const std::filesystem::path& path) const;
  virtual int64_t write(int file, std::span<const std::byte> bytes) const = 0;                     // may be short
  virtual int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const = 0;  // likewise
  virtual int resize(int file, int64_t bytes) const = 0;
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
