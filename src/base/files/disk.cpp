#include "base/files/disk.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace cairn::base {
namespace {

class RealDisk final : public Disk {
 public:
  int create(const std::filesystem::path& path) const override {
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  }
  int append(const std::filesystem::path& path) const override {
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }
  int open_shared(const std::filesystem::path& path) const override { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); }
  int open_direct(const std::filesystem::path& path) const override {
    return ::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0644);
  }
  int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const override {
    ssize_t n = -1;
    do n = ::pwrite(file, bytes.data(), bytes.size(), offset);
    while (n < 0 && errno == EINTR);
    return n;
  }
  int resize(int file, int64_t bytes) const override { return ::ftruncate(file, bytes); }
  int64_t write(int file, std::span<const std::byte> bytes) const override {
    ssize_t n = -1;
    do n = ::write(file, bytes.data(), bytes.size());
    while (n < 0 && errno == EINTR);
    return n;
  }
  int sync(int file) const override { return ::fsync(file); }
  int close(int file) const override { return ::close(file); }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) const override {
    return ::rename(from.c_str(), to.c_str());
  }
  int remove(const std::filesystem::path& path) const override { return ::unlink(path.c_str()); }

  int sync_folder(const std::filesystem::path& folder) const override {
    const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0) return -1;
    int result = ::fsync(file);
    if (result != 0 && (errno == EINVAL || errno == ENOTSUP)) result = 0;  // some network file systems cannot, and need not
    ::close(file);
    return result;
  }

  int64_t free_bytes(const std::filesystem::path& folder) const override {
    struct statvfs facts {};
    if (::statvfs(folder.c_str(), &facts) != 0) return -1;
    return static_cast<int64_t>(facts.f_bavail) * static_cast<int64_t>(facts.f_frsize);
  }
};

}  // namespace

int Disk::open_direct(const std::filesystem::path& /*path*/) const {
  errno = EINVAL;
  return -1;
}

const Disk& real_disk() {
  static const RealDisk disk;
  return disk;
}

}  // namespace cairn::base
