#include "snapshot/run_lock.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/process.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr int kAttempts = 100;  // each fails only because another process removed something at that moment
constexpr std::chrono::milliseconds kPause{5}, kNaming{500};
constexpr size_t kOwnerBytesMax = 4096;

// When a process started, in clock ticks since the machine did. Empty where there is no such process.
std::string process_start_of(int64_t process) {
  constexpr size_t kStart = 22 - base::kFirstStatField;
  const std::vector<std::string> stat = base::process_stat(process);
  return stat.size() > kStart ? stat[kStart] : "";
}

std::string utc_now() {
  const auto now = static_cast<std::time_t>(base::wall_time());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::string text(32, '\0');
  text.resize(std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts));
  return text;
}

std::string text_of_owner(const LockOwner& owner) {
  return base::compact(base::OrderedJson{
             {"process", owner.process}, {"host", owner.host}, {"process_start", owner.process_start}, {"since", owner.since}}) +
         "\n";
}

// An owner with process 0 where the file says nothing that can be read: it was made a moment ago, or damaged.
LockOwner read_owner(const fs::path& path) {
  std::ifstream file(path);
  std::string text(kOwnerBytesMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  LockOwner owner;
  try {
    const base::Json json = base::parse_json(text);
    owner = {json.at("process").get<int64_t>(), json.at("host").get<std::string>(), json.at("process_start").get<std::string>(),
             json.at("since").get<std::string>()};
  } catch (const std::exception&) {
    return {};
  }
  return owner;
}

[[noreturn]] void refuse_in_use(const fs::path& directory, const LockOwner& owner) {
  if (owner.process == 0)
    base::fail_input("{} is in use by another process: wait for it to end, or choose another directory (--out)", directory.string());
  base::fail_input("{} is in use by process {} on {} since {}: stop it (kill {}), or choose another directory (--out)", directory.string(),
                   owner.process, owner.host, owner.since, owner.process);
}

[[noreturn]] void refuse_directory(const fs::path& directory, int error) {
  base::fail_input("{}: cannot be a run directory: {}. Choose another one (--out)", directory.string(), std::strerror(error));
}

}  // namespace

LockOwner this_process() { return {::getpid(), base::host_name(), process_start_of(::getpid()), utc_now()}; }

bool is_running(const LockOwner& owner) {
  if (owner.process <= 0 || (::kill(static_cast<pid_t>(owner.process), 0) != 0 && errno != EPERM)) return false;
  return owner.process_start.empty() || process_start_of(owner.process) == owner.process_start;
}

RunLock::RunLock(NotTaken, fs::path directory, LockOwner owner, TryLock try_lock)
    : directory_(std::move(directory)),
      path_(directory_ / kLockFile),
      owner_(std::move(owner)),
      try_lock_(try_lock ? std::move(try_lock) : [](int file) { return ::flock(file, LOCK_EX | LOCK_NB); }) {}

RunLock::RunLock(fs::path directory, LockOwner owner, TryLock try_lock, std::chrono::milliseconds linger)
    : RunLock(NotTaken(), std::move(directory), std::move(owner), std::move(try_lock)) {
  std::chrono::milliseconds waited{0};
  while (!take(Make::if_missing)) {
    const LockOwner other = read_owner(path_);
    const bool unnamed = other.process == 0;  // it has taken the lock just now
    const bool ending = other.host == owner_.host && !is_running(other);
    if (waited >= (unnamed ? kNaming : ending ? linger : waited)) refuse_in_use(directory_, other);
    ::poll(nullptr, 0, static_cast<int>(kPause.count()));  // no system tells when a lock is freed without waiting for ever
    waited += kPause;
  }
}

std::unique_ptr<RunLock> RunLock::make_new(const fs::path& directory) {
  std::unique_ptr<RunLock> lock(new RunLock(NotTaken(), directory, this_process(), {}));
  return lock->take(Make::new_only) ? std::move(lock) : nullptr;
}

bool RunLock::take(Make make) {
  Taken taken = Taken::again;
  try {
    for (int attempt = 0; taken == Taken::again && attempt < kAttempts; ++attempt) {
      taken = make_directories(make);
      if (taken == Taken::yes) taken = try_to_take();
      if (taken != Taken::yes) let_go();
    }
  } catch (...) {
    let_go();
    throw;
  }
  if (taken == Taken::again) refuse_directory(directory_, ENOENT);
  held_ = taken == Taken::yes;
  return held_;
}

RunLock::~RunLock() {
  if (held_ && base::is_file_at(file_, path_)) ::unlink(path_.c_str());
  let_go();
}

void RunLock::let_go() noexcept {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
  for (auto one = made_.rbegin(); one != made_.rend(); ++one) ::rmdir(one->c_str());  // fails where something is in it
  made_.clear();
}

void RunLock::let_children_inherit() { ::fcntl(file_, F_SETFD, 0); }

RunLock::Taken RunLock::make_directories(Make make) {
  std::error_code error;
  const fs::path whole = fs::absolute(directory_, error).lexically_normal();
  std::vector<fs::path> missing;
  for (fs::path at = whole.has_filename() ? whole : whole.parent_path(); at != at.parent_path(); at = at.parent_path()) {
    if (fs::exists(at, error) || (error && error != std::errc::no_such_file_or_directory)) break;
    missing.push_back(at);
  }
  if (missing.empty() && make == Make::new_only) return Taken::in_use;
  for (auto one = missing.rbegin(); one != missing.rend(); ++one) {
    if (::mkdir(one->c_str(), 0777) == 0) {
      made_.push_back(*one);
    } else if (errno == ENOENT) {
      return Taken::again;
    } else if (errno != EEXIST) {
      refuse_directory(directory_, errno);
    } else if (make == Make::new_only && *one == missing.front()) {
      return Taken::in_use;
    }
  }
  return Taken::yes;
}

RunLock::Taken RunLock::try_to_take() {
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0 && errno == ENOENT) return Taken::again;  // a run that failed has removed the directory
  if (file_ < 0) refuse_directory(directory_, errno);
  if (try_lock_(file_) != 0) return errno == EWOULDBLOCK ? Taken::in_use : take_without_flock();
  if (!base::is_file_at(file_, path_)) return Taken::again;  // the last holder removed this file
  if (LockOwner before = read_owner(path_); before.process > 0 && before.host != owner_.host) abandoned_ = std::move(before);
  write_owner();
  return Taken::yes;
}

// A lock file is put in place by link(), which fails where one exists. One of a dead process is moved away first; if it has become another
// one meanwhile, it is put back.
RunLock::Taken RunLock::take_without_flock() {
  ::close(std::exchange(file_, -1));
  const LockOwner before = read_owner(path_);
  if (before.process > 0 && before.host != owner_.host)
    base::fail_input(
        "{} is in use by process {} on {} since {}, or that process was killed: this file system has no locks that could tell. If it has "
        "ended, remove {}",
        directory_.string(), before.process, before.host, before.since, path_.string());
  if (is_running(before)) return Taken::in_use;
  const fs::path own = directory_ / fmt::format("{}.{}.{}", kLockFile, owner_.host, owner_.process), old = own.string() + ".old";
  if (::rename(path_.c_str(), old.c_str()) == 0) {
    if (read_owner(old) != before) ::link(old.c_str(), path_.c_str());
    ::unlink(old.c_str());
  }
  file_ = ::open(own.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) refuse_directory(directory_, errno);
  write_owner();
  const int linked = ::link(own.c_str(), path_.c_str()), why = errno;
  if (linked == 0 || why == EEXIST) {
    ::unlink(own.c_str());
  } else if (::rename(own.c_str(), path_.c_str()) != 0) {  // no links here either
    refuse_directory(directory_, errno);
  }
  return linked != 0 && why == EEXIST ? Taken::in_use : Taken::yes;
}

// On a full disk the lock holds all the same; a second run then cannot name the owner.
void RunLock::write_owner() {
  const std::string text = text_of_owner(owner_);
  if (::ftruncate(file_, 0) == 0) (void)!::pwrite(file_, text.data(), text.size(), 0);
}

}  // namespace cairn::snapshot
