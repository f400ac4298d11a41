#include "data/corpus/file_reader.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"

namespace cairn::data {
namespace {

int64_t nanoseconds(const timespec& time) { return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec; }

[[noreturn]] void fail_to(const char* act, const std::string& path, int error) {
  base::fail_input("cannot {} {}: {}", act, path, std::generic_category().message(error));
}

}  // namespace

FileReader::FileReader(std::string path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a named pipe must not hang us
  if (file_ < 0) fail_to("open", path_, errno);
  struct stat facts {};
  const bool known = ::fstat(file_, &facts) == 0;
  if (!known || !S_ISREG(facts.st_mode)) {
    const int error = errno;
    ::close(file_);
    if (!known) fail_to("read", path_, error);
    base::fail_input("cannot read {}: it is {}", path_, S_ISDIR(facts.st_mode) ? "a folder, not a file" : "not a regular file");
  }
  stamp_ = {.bytes = facts.st_size,
            .inode = static_cast<int64_t>(facts.st_ino),
            .device = static_cast<int64_t>(facts.st_dev),
            .modified_ns = nanoseconds(facts.st_mtim),
            .changed_ns = nanoseconds(facts.st_ctim)};
}

FileReader::~FileReader() { ::close(file_); }

size_t FileReader::read(char* into, size_t bytes) {
  size_t have = 0;
  while (have < bytes) {
    const ssize_t n = ::read(file_, into + have, bytes - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_to("read", path_, errno);
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  return have;
}

uint64_t hash_content(FileReader& file) {
  base::Checksum sum;
  std::vector<char> block(1 << 20);
  while (const size_t n = file.read(block.data(), block.size())) sum.add(std::as_bytes(std::span(block).first(n)));
  return sum.value();
}

}  // namespace cairn::data
