#include "data/corpus/file_lock.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <fcntl.h>
#include <poll.h>
#include <string_view>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/files.h"
#include "base/process.h"

namespace cairn::data {
namespace {

constexpr int kTryAgainMs = 50;

void write_holder(int file) {
  const std::string text = fmt::format("process {} on {}", ::getpid(), base::host_name());
  // The text is for messages alone, so that a full disk does no harm.
  if (::ftruncate(file, 0) == 0 && ::pwrite(file, text.data(), text.size(), 0) < 0) return;
}

std::string read_holder(int file) {
  std::array<char, 128> text{};
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  const std::string_view whole(text.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
  const bool readable = !whole.empty() && std::all_of(whole.begin(), whole.end(), [](char c) { return c >= ' ' && c <= '~'; });
  return readable ? std::string(whole) : "another process";
}

}  // namespace

FileLock::FileLock(const std::string& path, const OnWait& on_wait) : path_(path) {
  int64_t waited_ms = 0;
  try {
    while (true) {
      file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
      if (file_ < 0) return;
      int taken = ::flock(file_, LOCK_EX | LOCK_NB);
      for (; taken != 0 && (errno == EWOULDBLOCK || errno == EINTR); taken = ::flock(file_, LOCK_EX | LOCK_NB)) {
        on_wait(static_cast<double>(waited_ms) / 1e3, read_holder(file_));
        ::poll(nullptr, 0, kTryAgainMs);
        waited_ms += kTryAgainMs;
      }
      if (taken != 0) return;
      held_ = base::is_file_at(file_, path_);
      if (held_) {
        write_holder(file_);
        return;
      }
      ::close(file_);  // the last holder removed this file: others lock a new file of that name
    }
  } catch (...) {
    ::close(file_);
    throw;
  }
}

FileLock::~FileLock() {
  if (held_) ::unlink(path_.c_str());
  if (file_ >= 0) ::close(file_);
}

}  // namespace cairn::data
