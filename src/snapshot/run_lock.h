// Keeps a second run out of a run directory that is in use.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace cairn::snapshot {

// The file of the lock, in the run directory. It is there while a run uses the directory, and after a run that was killed.
inline constexpr const char* kLockFile = ".lock";

// The process that holds a run directory.
struct LockOwner {
  int64_t process = 0;
  std::string host;
  std::string process_start;  // tells a process from a later one with the same number
  std::string since;          // "2026-11-18 04:30:12 UTC"
  bool operator==(const LockOwner&) const = default;
};
LockOwner this_process();

// Whether the process of this host runs. False for a later process with the same number.
bool is_running(const LockOwner& owner);

// Holds a run directory from construction to destruction, by flock on a file in it. The system frees the lock when the last process that
// has the file open ends, so that a killed run leaves nothing locked.
//
// Processes that write into the directory for the holder (ranks of an agent) inherit the file: the directory stays in use until the last of
// them has ended, even if the agent is killed first.
//
// File systems without flock (some network file systems): the file itself is the lock, and its content says whose. One of this host is
// judged by whether the process runs. One of another host cannot be judged and is refused.
class RunLock {
 public:
  using TryLock = std::function<int(int file)>;  // 0 or -1 with errno, as flock(file, LOCK_EX | LOCK_NB)

  // Makes the directory where it is missing. Throws bad_input with the owner where it is in use, or where it cannot be written. Where the
  // owner was killed and processes that it started hold the lock, waits up to `linger` for their end.
  explicit RunLock(std::filesystem::path directory, LockOwner owner = this_process(), TryLock try_lock = {},
                   std::chrono::milliseconds linger = std::chrono::seconds(3));
  // Makes the directory and holds it. Nothing where it exists already: of several callers at once, one gets it.
  static std::unique_ptr<RunLock> make_new(const std::filesystem::path& directory);
  // Removes the file, and directories that it made if nothing was written into them.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // The owner on another host that ended without removing the lock; its process is 0 where there is none.
  const LockOwner& abandoned() const { return abandoned_; }
  void let_children_inherit();

 private:
  enum class Make { new_only, if_missing };
  enum class Taken { yes, in_use, again };  // again: another process removed what was just made
  struct NotTaken {};
  RunLock(NotTaken, std::filesystem::path directory, LockOwner owner, TryLock try_lock);
  bool take(Make make);
  Taken make_directories(Make make);
  Taken try_to_take();
  Taken take_without_flock();
  void write_owner();
  void let_go() noexcept;

  std::filesystem::path directory_, path_;
  LockOwner owner_, abandoned_;
  TryLock try_lock_;
  std::vector<std::filesystem::path> made_;  // directories, outermost first
  bool held_ = false;
  int file_ = -1;
};

}  // namespace cairn::snapshot
