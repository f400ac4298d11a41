// Mutual exclusion between processes and threads, by a lock file.
#pragma once
#include <functional>
#include <string>

namespace cairn::data {

// Holds an advisory lock on a file until destroyed. The file is created where it is missing and removed with the lock. The system frees the
// lock when its holder dies, so waiting ends; the holder's work may then be half done. Where the file cannot be locked (read-only folder, a
// network file system without locks) it holds nothing: work may be done twice, and nothing breaks.
class FileLock {
 public:
  // Calls `on_wait` once before waiting, if somebody else holds the lock.
  FileLock(const std::string& path, const std::function<void()>& on_wait);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  bool held() const { return held_; }

 private:
  std::string path_;
  int file_ = -1;
  bool held_ = false;
};

}  // namespace cairn::data
