#include "data/corpus/mapped_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "base/check.h"

namespace cairn::data {

MappedFile::MappedFile(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  int error = file < 0 ? errno : 0;
  struct stat facts {};
  if (file >= 0 && ::fstat(file, &facts) != 0) error = errno;
  const bool regular = error == 0 && S_ISREG(facts.st_mode);
  void* at = nullptr;
  if (regular && facts.st_size > 0) {
    at = ::mmap(nullptr, static_cast<size_t>(facts.st_size), PROT_READ, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) error = errno;
  }
  if (file >= 0) ::close(file);
  if (error != 0) base::fail_input("cannot open {}: {}", path, std::generic_category().message(error));
  if (!regular) base::fail_input("cannot read {}: it is not a regular file", path);
  bytes_ = {static_cast<const std::byte*>(at), static_cast<size_t>(facts.st_size)};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace cairn::data
