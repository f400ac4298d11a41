#include "memory/swap_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/text.h"

namespace cairn::memory {
namespace {

constexpr std::string_view kPrefix = "cairn-swap-", kEnding = ".data";
constexpr size_t kRunIdMax = 64;

void check_run_id(const std::string& id) {
  const bool plain = std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
  if (id.empty() || id.size() > kRunIdMax || !plain)
    base::fail_input("run id \"{}\": must be 1 to {} letters, digits, '-' or '_'", id, kRunIdMax);
}

// The kind of a file system that keeps its files in memory; null: this one does not.
const char* memory_file_system(const std::filesystem::path& folder) {
  struct statfs facts {};
  if (::statfs(folder.c_str(), &facts) != 0) return nullptr;
  switch (static_cast<uint64_t>(facts.f_type) & 0xffffffff) {
    case 0x01021994:
      return "tmpfs";
    case 0x858458f6:
      return "ramfs";
    case 0x958458f6:
      return "hugetlbfs";
    default:
      return nullptr;
  }
}

// Removes a file that no process has locked. False: one has.
bool remove_unlocked(const std::filesystem::path& path, base::Log& log, const base::Disk& disk, int64_t& bytes) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return errno == ENOENT;
  const bool unlocked = ::flock(file, LOCK_EX | LOCK_NB) == 0;
  if (unlocked) {
    std::error_code ignored;
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path, ignored));
    disk.remove(path);
    bytes += size;
    log.info("memory: removed {} ({}), which a process of this run left behind", path.string(), base::human_bytes(size));
  }
  ::close(file);
  return unlocked;
}

std::string name_of_swap_file(const SwapOptions& options) {
  check_run_id(options.run_id);
  return fmt::format("{}{}-{}{}", kPrefix, options.run_id, options.rank, kEnding);
}

// What other runs hold in this folder, for an error.
std::string other_swap_files(const std::filesystem::path& folder, const std::filesystem::path& own) {
  std::string text;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kEnding) || entry.path() == own) continue;
    text += fmt::format("{}{} {}", text.empty() ? "; swap files there: " : ", ", name,
                        base::human_bytes(static_cast<int64_t>(entry.file_size(ignored))));
  }
  return text;
}

}  // namespace

SwapFile::SwapFile(const SwapOptions& options, base::Log& log, const base::Disk& disk)
    : disk_(disk),
      path_(options.folder / name_of_swap_file(options)),
      run_(base::checksum(options.run_id)),
      budget_("memory.disk_budget", options.bytes) {
  base::make_folder(options.folder);
  if (const char* kind = memory_file_system(options.folder))
    base::fail_input("memory.disk_path = {}: it is on a {}, whose files are in memory. Choose a folder on a disk.", options.folder.string(),
                     kind);
  int64_t removed = 0;
  if (!remove_unlocked(path_, log, disk_, removed))
    base::fail_input("memory.disk_path = {}: another process of this run uses {}. End it, or give this run another name.",
                     options.folder.string(), path_.filename().string());
  check_room(options);
  file_ = disk_.open_direct(path_);
  if (file_ < 0)
    base::fail_input("memory.disk_path = {}: {} cannot be opened for direct I/O: {}. Choose a folder on a disk.", options.folder.string(),
                     path_.filename().string(), std::strerror(errno));
  try {
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0 || !base::is_file_at(file_, path_))
      base::fail_input("memory.disk_path = {}: another process of this run began to use {}", options.folder.string(),
                       path_.filename().string());
    reserve(options);
  } catch (...) {
    disk_.remove(path_);
    disk_.close(file_);
    throw;
  }
}

SwapFile::~SwapFile() {
  disk_.remove(path_);
  disk_.close(file_);
}

void SwapFile::check_room(const SwapOptions& options) const {
  const int64_t free = disk_.free_bytes(options.folder);
  if (free < 0 || free >= budget_.capacity()) return;
  base::fail_input("memory.disk_budget = {}: {} has {} free{}. Lower it, free space, or choose another memory.disk_path.",
                   base::human_bytes(budget_.capacity()), options.folder.string(), base::human_bytes(free),
                   other_swap_files(options.folder, path_));
}

// Room that is reserved cannot be missing in the middle of a step, and the file system need not look for it at every write.
void SwapFile::reserve(const SwapOptions& options) {
  if (budget_.capacity() == 0) return;
  int error = 0;
  if (&disk_ == &base::real_disk() && ::fallocate(file_, 0, 0, budget_.capacity()) != 0) error = errno;
  if (error == EOPNOTSUPP || error == ENOSYS || &disk_ != &base::real_disk())
    error = disk_.resize(file_, budget_.capacity()) == 0 ? 0 : errno;
  if (error != 0)
    base::fail_input("memory.disk_budget = {}: {} cannot be reserved in {}: {}. Lower it, free space, or choose another memory.disk_path.",
                     base::human_bytes(budget_.capacity()), path_.filename().string(), options.folder.string(), std::strerror(error));
}

int64_t remove_swap_files(const std::filesystem::path& folder, const std::string& run_id, base::Log& log, const base::Disk& disk) {
  check_run_id(run_id);
  const std::string prefix = fmt::format("{}{}-", kPrefix, run_id);
  int64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(kEnding)) continue;
    const std::string rank = name.substr(prefix.size(), name.size() - prefix.size() - kEnding.size());
    const bool is_number = !rank.empty() && rank.find_first_not_of("0123456789") == std::string::npos;
    if (is_number) remove_unlocked(entry.path(), log, disk, bytes);
  }
  return bytes;
}

}  // namespace cairn::memory
