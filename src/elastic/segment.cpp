#include "elastic/segment.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::elastic {
namespace {

std::byte* map(int fd, int64_t bytes) {
  void* const start = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (start == MAP_FAILED)
    throw Error(Error::Kind::out_of_memory, fmt::format("cannot map {} bytes of a snapshot in memory: {}", bytes, std::strerror(errno)));
  return static_cast<std::byte*>(start);
}

std::span<std::byte> checked_part(std::byte* start, int64_t bytes, int64_t offset, int64_t length) {
  CAIRN_CHECK(offset >= 0 && length >= 0 && offset <= bytes - length, "bytes {} to {} of {}", offset, offset + length, bytes);
  return {start + offset, static_cast<size_t>(length)};
}

}  // namespace

Segment::Segment(const char* name, int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  fd_ = ::memfd_create(name, MFD_CLOEXEC);
  if (fd_ < 0 || ::ftruncate(fd_, bytes) != 0) {
    const int error = errno;
    if (fd_ >= 0) ::close(fd_);
    throw Error(Error::Kind::out_of_memory, fmt::format("cannot make {} bytes of memory for snapshots: {}", bytes, std::strerror(error)));
  }
  try {
    start_ = map(fd_, bytes);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), start_(std::exchange(other.start_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(start_, other.start_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Segment::~Segment() {
  if (start_) ::munmap(start_, static_cast<size_t>(bytes_));
  if (fd_ >= 0) ::close(fd_);
}

std::span<std::byte> Segment::part(int64_t offset, int64_t length) const { return checked_part(start_, bytes_, offset, length); }

SegmentMap::SegmentMap(int fd, int64_t bytes) : start_(map(fd, bytes)), bytes_(bytes) {}

SegmentMap::SegmentMap(SegmentMap&& other) noexcept
    : start_(std::exchange(other.start_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

SegmentMap& SegmentMap::operator=(SegmentMap&& other) noexcept {
  std::swap(start_, other.start_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SegmentMap::~SegmentMap() {
  if (start_) ::munmap(start_, static_cast<size_t>(bytes_));
}

std::span<std::byte> SegmentMap::part(int64_t offset, int64_t length) const { return checked_part(start_, bytes_, offset, length); }

}  // namespace cairn::elastic
