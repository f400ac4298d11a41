#include "base/files/nowhere_disk.h"

#include <fcntl.h>
#include <limits>
#include <unistd.h>

namespace cairn::base {
namespace {

int open_null() { return ::open("/dev/null", O_WRONLY | O_CLOEXEC); }

class NowhereDisk final : public Disk {
 public:
  int create(const std::filesystem::path&) const override { return open_null(); }
  int append(const std::filesystem::path&) const override { return open_null(); }
  int open_shared(const std::filesystem::path&) const override { return open_null(); }
  int64_t write(int, std::span<const std::byte> bytes) const override { return static_cast<int64_t>(bytes.size()); }
  int64_t write_at(int, std::span<const std::byte> bytes, int64_t) const override { return static_cast<int64_t>(bytes.size()); }
  int resize(int, int64_t) const override { return 0; }
  int sync(int) const override { return 0; }
  int close(int file) const override { return ::close(file); }
  int rename(const std::filesystem::path&, const std::filesystem::path&) const override { return 0; }
  int remove(const std::filesystem::path&) const override { return 0; }
  int sync_folder(const std::filesystem::path&) const override { return 0; }
  int64_t free_bytes(const std::filesystem::path&) const override { return std::numeric_limits<int64_t>::max(); }
};

}  // namespace

const Disk& nowhere_disk() {
  static const NowhereDisk disk;
  return disk;
}

}  // namespace cairn::base
