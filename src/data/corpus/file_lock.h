// One process, or thread, at a time.
#pragma once
#include <functional>
#include <string>

namespace cairn::data {

// Holds an advisory lock on a file, made where it is missing and removed with the lock, until destroyed. The system frees it when its
// holder dies, however that happens, so waiting ends; what the holder was doing may then be half done. Where the file cannot be locked
// (read-only folder, a network file system without locks) it holds nothing, which costs double work and no harm.
class FileLock {
 public:
  // `on_wait` is called once if somebody else holds it, before waiting.
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
