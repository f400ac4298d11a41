// Mutual exclusion between processes and threads, by a lock file.
#pragma once
#include <functional>
#include <string>

namespace cairn::data {

// Holds an advisory lock on a file until destroyed. The file is created where it is missing, says who holds the lock, and is removed with
// it. The system frees the lock when its holder dies, so waiting ends; the holder's work may then be half done. Where the file cannot be
// locked (read-only folder, a network file system without locks) it holds nothing: work may be done twice, and nothing breaks.
class FileLock {
 public:
  // Called while somebody else holds the lock: at once, then about every 50 ms, with the sum of these. It may throw, which ends the wait.
  using OnWait = std::function<void(double waited_s, const std::string& holder)>;
  FileLock(const std::string& path, const OnWait& on_wait);
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
