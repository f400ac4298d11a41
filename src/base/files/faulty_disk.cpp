#include "base/files/faulty_disk.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace cairn::base {

FaultyDisk::FaultyDisk(DiskFaults faults) : faults_(faults) {}

int FaultyDisk::fail(int error) const {
  ++fired_;
  errno = error;
  return -1;
}

int FaultyDisk::create(const std::filesystem::path& path) const { return dead_ ? fail(EIO) : real_disk().create(path); }
int FaultyDisk::append(const std::filesystem::path& path) const { return dead_ ? fail(EIO) : real_disk().append(path); }

int FaultyDisk::open_shared(const std::filesystem::path& path) const { return dead_ ? fail(EIO) : real_disk().open_shared(path); }
int FaultyDisk::open_direct(const std::filesystem::path& path) const { return dead_ ? fail(EIO) : real_disk().open_direct(path); }
int FaultyDisk::resize(int file, int64_t bytes) const { return dead_ ? fail(EIO) : real_disk().resize(file, bytes); }

int64_t FaultyDisk::let_through(int64_t bytes) const {
  if (dead_) return fail(EIO);
  if (faults_.longest_write_bytes >= 0 && bytes > faults_.longest_write_bytes) {
    bytes = faults_.longest_write_bytes;
    ++fired_;
  }
  for (const auto& [limit, error] : {std::pair{faults_.full_after_bytes, ENOSPC}, std::pair{faults_.error_after_bytes, EIO}}) {
    if (limit < 0) continue;
    if (written_ >= limit) return fail(error);
    bytes = std::min(bytes, limit - written_);  // a filling disk takes what it still can
  }
  return bytes;
}

int64_t FaultyDisk::write(int file, std::span<const std::byte> bytes) const {
  const int64_t length = let_through(static_cast<int64_t>(bytes.size()));
  if (length < 0) return length;
  const int64_t n = real_disk().write(file, bytes.first(static_cast<size_t>(length)));
  if (n > 0) written_ += n;
  return n;
}

int64_t FaultyDisk::write_at(int file, std::span<const std::byte> bytes, int64_t offset) const {
  const int64_t length = let_through(static_cast<int64_t>(bytes.size()));
  if (length < 0) return length;
  const int64_t n = real_disk().write_at(file, bytes.first(static_cast<size_t>(length)), offset);
  if (n > 0) written_ += n;
  return n;
}

int FaultyDisk::sync(int file) const { return dead_ || faults_.sync_fails ? fail(EIO) : real_disk().sync(file); }
int FaultyDisk::close(int file) const { return real_disk().close(file); }  // the kernel closes a dead process's files too

int FaultyDisk::rename(const std::filesystem::path& from, const std::filesystem::path& to) const {
  if (faults_.crash_before_rename) dead_ = true;
  if (dead_) return fail(EIO);
  return faults_.rename_fails ? fail(EACCES) : real_disk().rename(from, to);
}

int FaultyDisk::remove(const std::filesystem::path& path) const { return dead_ ? fail(EIO) : real_disk().remove(path); }
int FaultyDisk::sync_folder(const std::filesystem::path& folder) const { return dead_ ? fail(EIO) : real_disk().sync_folder(folder); }

int64_t FaultyDisk::free_bytes(const std::filesystem::path& folder) const {
  return faults_.free_bytes >= 0 ? faults_.free_bytes : real_disk().free_bytes(folder);
}

}  // namespace cairn::base
