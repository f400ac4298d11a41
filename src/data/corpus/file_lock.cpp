#include "data/corpus/file_lock.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace cairn::data {
namespace {

// Whether an open file is still the one under its name.
bool is_at(int file, const std::string& path) {
  struct stat open {
  }, named{};
  return ::fstat(file, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

}  // namespace

FileLock::FileLock(const std::string& path, const std::function<void()>& on_wait) : path_(path) {
  for (bool waited = false;;) {
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file_ < 0) return;
    int taken = ::flock(file_, LOCK_EX | LOCK_NB);
    if (taken != 0 && errno == EWOULDBLOCK) {
      if (!waited) on_wait();
      waited = true;
      do {
        taken = ::flock(file_, LOCK_EX);
      } while (taken != 0 && errno == EINTR);
    }
    if (taken != 0) return;
    held_ = is_at(file_, path_);
    if (held_) return;
    ::close(file_);  // the last holder removed this file: others lock a new file of that name
  }
}

FileLock::~FileLock() {
  if (held_) ::unlink(path_.c_str());
  if (file_ >= 0) ::close(file_);
}

}  // namespace cairn::data
