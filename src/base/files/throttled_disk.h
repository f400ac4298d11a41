#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>

#include "base/files/disk.h"

namespace cairn::base {

class Clock;

// A disk that is written at so many bytes a second at most: a token bucket that holds the tokens of one short write. For runs that share a
// file system with others (snapshot.write_bytes_per_s), and for tests that need a slow disk. Everything else passes through.
class ThrottledDisk final : public Disk {
 public:
  ThrottledDisk(const Disk& disk, double bytes_per_s, const Clock& clock);  // both are borrowed

  int create(const std::filesystem::path& path) const override { return disk_.create(path); }
  int append(const std::filesystem::path& path) const override { return disk_.append(path); }
  int open_shared(const std::filesystem::path& path) const override { return disk_.open_shared(path); }
  int open_direct(const std::filesystem::path& path) const override { return disk_.open_direct(path); }
  int64_t write(int file, std::span<const std::byte> bytes) const override;
  int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const override;
  int resize(int file, int64_t bytes) const override { return disk_.resize(file, bytes); }
  int sync(int file) const override { return disk_.sync(file); }
  int close(int file) const override { return disk_.close(file); }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) const override { return disk_.rename(from, to); }
  int remove(const std::filesystem::path& path) const override { return disk_.remove(path); }
  int sync_folder(const std::filesystem::path& folder) const override { return disk_.sync_folder(folder); }
  int64_t free_bytes(const std::filesystem::path& folder) const override { return disk_.free_bytes(folder); }

 private:
  std::span<const std::byte> part_of(std::span<const std::byte> bytes) const;
  void pay(int64_t written) const;

  const Disk& disk_;
  const double bytes_per_s_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  mutable std::condition_variable time_;
  mutable std::chrono::nanoseconds paid_until_{0};
};

}  // namespace cairn::base
