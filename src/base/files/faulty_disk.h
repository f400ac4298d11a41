#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/files/disk.h"

namespace cairn::base {

// Faults of a disk, as data. A fault that is not set does not happen.
struct DiskFaults {
  int64_t full_after_bytes = -1;     // ENOSPC once this many bytes were written in all
  int64_t error_after_bytes = -1;    // EIO likewise
  int64_t longest_write_bytes = -1;  // every write is at most this long: a short write, no error
  bool sync_fails = false;           // EIO
  bool crash_before_rename = false;  // simulates a crash: rename and every later call fail with EIO, nothing is cleaned up
  bool rename_fails = false;         // EACCES
  int64_t free_bytes = -1;           // what is reported as free
};

// The real disk with faults in front of it.
class FaultyDisk final : public Disk {
 public:
  explicit FaultyDisk(DiskFaults faults);
  int64_t fired() const { return fired_; }
  // From here on the disk is full, or has no fault. To be called while no thread writes.
  void fill_up() { faults_ = {.full_after_bytes = 0}; }
  void recover() { faults_ = {}; }

  int create(const std::filesystem::path& path) const override;
  int append(const std::filesystem::path& path) const override;
  int open_shared(const std::filesystem::path& path) const override;
  int open_direct(const std::filesystem::path& path) const override;
  int64_t write(int file, std::span<const std::byte> bytes) const override;
  int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const override;
  int resize(int file, int64_t bytes) const override;
  int sync(int file) const override;
  int close(int file) const override;
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) const override;
  int remove(const std::filesystem::path& path) const override;
  int sync_folder(const std::filesystem::path& folder) const override;
  int64_t free_bytes(const std::filesystem::path& folder) const override;

 private:
  int fail(int error) const;
  int64_t let_through(int64_t bytes) const;  // how many of these are written, or -1 with errno

  DiskFaults faults_;
  mutable std::atomic<int64_t> written_{0};
  mutable std::atomic<int64_t> fired_{0};
  mutable std::atomic<bool> dead_{false};
};

}  // namespace cairn::base
