#include "base/files/positioned_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::base {

PositionedFile::PositionedFile(std::string path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail_corrupt(path_, errno == ENOENT ? "missing" : fmt::format("cannot be opened: {}", std::strerror(errno)));
}

PositionedFile::PositionedFile(PositionedFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), bytes_read_(other.bytes_read_) {}

PositionedFile::~PositionedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void PositionedFile::read(int64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t n = ::pread(descriptor_, into.data(), into.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_corrupt(path_, fmt::format("cannot be read at {}: {}", offset, std::strerror(errno)));
    if (n == 0) fail_corrupt(path_, fmt::format("ends at {}, {} bytes too early", offset, into.size()));
    bytes_read_ += n;
    offset += n;
    into = into.subspan(static_cast<size_t>(n));
  }
}

void PositionedFile::announce(int64_t offset, int64_t bytes) const { ::posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_WILLNEED); }

}  // namespace cairn::base
