#include "base/files/mapped_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files/mapped_fault.h"

namespace cairn::base {
namespace {

[[noreturn]] void fail(Error::Kind kind, const std::string& path, const std::string& reason) {
  if (kind == Error::Kind::corrupt_file) fail_corrupt(path, reason);
  throw Error(kind, fmt::format("cannot open {}: {}", path, reason));
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path, Error::Kind kind) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe under that name must not make us wait
  if (file < 0) fail(kind, path, errno == ENOENT ? "missing" : fmt::format("cannot be opened: {}", std::strerror(errno)));
  struct stat facts {};
  const bool regular = ::fstat(file, &facts) == 0 && S_ISREG(facts.st_mode);
  const auto size = static_cast<size_t>(facts.st_size);
  void* start = regular && size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0) : nullptr;
  const int error = errno;
  ::close(file);
  if (!regular) fail(kind, path, "not a regular file");
  if (start == MAP_FAILED) fail(kind, path, fmt::format("cannot be mapped: {}", std::strerror(error)));
  return std::shared_ptr<const MappedFile>(new MappedFile(path, {static_cast<const std::byte*>(start), start ? size : 0}));
}

std::shared_ptr<const MappedFile> MappedFile::map(int file, int64_t offset, int64_t bytes, std::string name) {
  const auto size = static_cast<size_t>(bytes);
  void* start = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, offset) : nullptr;
  if (start == MAP_FAILED) fail(Error::Kind::corrupt_file, name, fmt::format("cannot be mapped: {}", std::strerror(errno)));
  return std::shared_ptr<const MappedFile>(new MappedFile(std::move(name), {static_cast<const std::byte*>(start), size}));
}

MappedFile::MappedFile(std::string path, std::span<const std::byte> bytes) : path_(std::move(path)), bytes_(bytes) {
  register_mapping(bytes_, path_.c_str());
}

MappedFile::~MappedFile() {
  forget_mapping(bytes_);
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace cairn::base
