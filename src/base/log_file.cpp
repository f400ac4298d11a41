#include "base/log_file.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/files/write_calls.h"

namespace cairn::base {

LogFile::LogFile(std::filesystem::path path, const Disk& disk, Warn warn, std::string header)
    : disk_(disk), path_(std::move(path)), warn_(std::move(warn)), header_(std::move(header)) {
  open();
}

LogFile::~LogFile() {
  if (file_ < 0) return;
  if (!waiting_.empty()) (void)write_all(disk_, file_, as_bytes(waiting_));  // the last chance; a warning was given
  disk_.close(file_);
}

void LogFile::open() {
  std::error_code ignored;
  const bool empty = !std::filesystem::exists(path_, ignored) || std::filesystem::file_size(path_, ignored) == 0;
  file_ = disk_.append(path_);
  if (file_ < 0) fail_disk("open", path_, errno, 0, disk_);
  if (empty) waiting_.insert(0, header_);
}

void LogFile::append(std::span<const std::byte> bytes) {
  if (waiting_.size() + bytes.size() > kWaitingMax) {
    ++pieces_lost_;
  } else {
    waiting_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  try {
    begin_again_if_deleted();
    write_waiting();
    outage_ = false;
  } catch (const Error& error) {
    if (!std::exchange(outage_, true) && warn_) warn_(fmt::format("{}; the run goes on, and writes this later if it can", error.what()));
  }
}

void LogFile::begin_again_if_deleted() {
  std::error_code unknown;
  if (file_ >= 0 && (std::filesystem::exists(path_, unknown) || unknown)) return;
  if (file_ >= 0) disk_.close(std::exchange(file_, -1));
  make_folder(path_.parent_path());
  open();
  if (warn_) warn_(fmt::format("{} was deleted: it begins again here", path_.string()));
}

void LogFile::write_waiting() {
  const std::span<const std::byte> rest = write_all(disk_, file_, as_bytes(waiting_));
  const int error = errno;
  waiting_.erase(0, waiting_.size() - rest.size());
  if (!waiting_.empty()) fail_disk("write", path_, error, static_cast<int64_t>(waiting_.size()), disk_);
}

}  // namespace cairn::base
