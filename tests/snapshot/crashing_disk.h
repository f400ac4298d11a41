#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <unistd.h>

#include "base/files/disk.h"

namespace cairn::snapshot {

// Every call counts; the process ends at the chosen one, before it, or in the middle of a write. Syncing is left out: it matters
// to a machine that dies, not to a process.
class CrashingDisk final : public base::Disk {
 public:
  explicit CrashingDisk(int64_t crash_at) : left_(crash_at) {}
  int create(const std::filesystem::path& path) const override { return count(), real_.create(path); }
  int append(const std::filesystem::path& path) const override { return count(), real_.append(path); }
  int64_t write(int file, std::span<const std::byte> bytes) const override {
    if (left_ == 0) real_.write(file, bytes.first(bytes.size() / 2));
    return count(), real_.write(file, bytes);
  }
  int open_shared(const std::filesystem::path& path) const override { return count(), real_.open_shared(path); }
  int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const override {
    if (left_ == 0) real_.write_at(file, bytes.first(bytes.size() / 2), offset);
    return count(), real_.write_at(file, bytes, offset);
  }
  int resize(int file, int64_t bytes) const override { return count(), real_.resize(file, bytes); }
  int sync(int) const override { return count(), 0; }
  int close(int file) const override { return count(), real_.close(file); }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) const override { return count(), real_.rename(from, to); }
  int remove(const std::filesystem::path& path) const override { return count(), real_.remove(path); }
  int sync_folder(const std::filesystem::path&) const override { return count(), 0; }
  int64_t free_bytes(const std::filesystem::path& folder) const override { return real_.free_bytes(folder); }

 private:
  void count() const {
    if (left_-- == 0) ::_exit(9);
  }
  const base::Disk& real_ = base::real_disk();
  mutable int64_t left_;
};

}  // namespace cairn::snapshot
