#include "base/log_file.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/files/write_calls.h"
#include "base/text.h"

namespace cairn::base {

LogFile::LogFile(std::filesystem::path path, const Disk& disk, Warn warn, std::string header)
    : disk_(disk), path_(std::move(path)), warn_(std::move(warn)), header_(std::move(header)) {
  open();
}

LogFile::~LogFile() {
  if (file_ < 0) return;
  try {
    write_waiting();        // the last chance
  } catch (const Error&) {  // a warning was given
  }
  disk_.close(file_);
}

void LogFile::open() {
  std::error_code ignored;
  const bool empty = !std::filesystem::exists(path_, ignored) || std::filesystem::file_size(path_, ignored) == 0;
  file_ = disk_.append(path_);
  if (file_ < 0) fail_disk("open", path_, errno, 0, disk_);
  written_ = 0;
  if (!waiting_.empty()) {  // what it continues is not in this file
    waiting_bytes_ += waiting_.front().before.size();
    waiting_.front().text.insert(0, std::exchange(waiting_.front().before, {}));
  }
  if (empty && !header_.empty() && (waiting_.empty() || !waiting_.front().is_header)) {
    waiting_.push_front({.text = header_, .is_header = true});
    waiting_bytes_ += header_.size();
  }
}

bool LogFile::append(std::span<const std::byte> bytes, std::string before) {
  const bool kept = !before.empty() || waiting_bytes_ + bytes.size() <= kWaitingMax;
  if (kept) {
    waiting_.push_back({.text = {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, .before = std::move(before)});
    waiting_bytes_ += bytes.size();
  } else {
    ++pieces_lost_;
  }
  try {
    begin_again_if_deleted();
    write_waiting();
    outage_ = false;
    if (const int64_t lost = pieces_lost_ - std::exchange(losses_told_, pieces_lost_); lost > 0 && warn_)
      warn_(fmt::format("{}: {} lost while it could not be written", path_.string(), plural(lost, "piece")));
  } catch (const Error& error) {
    if (!std::exchange(outage_, true) && warn_) warn_(fmt::format("{}; the run goes on, and writes this later if it can", error.what()));
  }
  return kept;
}

void LogFile::begin_again_if_deleted() {
  if (file_ >= 0 && is_file_at(file_, path_)) return;
  if (file_ >= 0) disk_.close(std::exchange(file_, -1));
  make_folder(path_.parent_path());
  open();
  if (warn_) warn_(fmt::format("{} was deleted: it begins again here", path_.string()));
}

void LogFile::write_waiting() {
  while (!waiting_.empty()) {
    const std::string& text = waiting_.front().text;
    const std::span<const std::byte> rest = write_all(disk_, file_, as_bytes(text).subspan(written_));
    if (!rest.empty()) {
      const int error = errno;
      written_ = text.size() - rest.size();
      fail_disk("write", path_, error, static_cast<int64_t>(waiting_bytes_ - written_), disk_);
    }
    waiting_bytes_ -= text.size();
    waiting_.pop_front();
    written_ = 0;
  }
}

}  // namespace cairn::base
