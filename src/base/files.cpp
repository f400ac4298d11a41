#include "base/files.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/check.h"
#include "base/files/write_calls.h"
#include "base/text.h"

namespace cairn::base {
namespace {

std::string text_of(int error) { return std::generic_category().message(error); }

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

void fail_disk(std::string_view doing, const std::filesystem::path& path, int error, int64_t bytes_missing, const Disk& disk) {
  const int64_t free = disk.free_bytes(folder_of(path));
  if (error == ENOSPC || error == EDQUOT) {
    throw Error(Error::Kind::disk, fmt::format("{} writing {}: {} needed, {} free; free space or choose another --out",
                                               error == ENOSPC ? "disk full" : "disk quota reached", path.string(),
                                               human_bytes(bytes_missing), free < 0 ? "unknown space" : human_bytes(free)));
  }
  throw Error(Error::Kind::disk, fmt::format("cannot {} {}: {}{}", doing, path.string(), text_of(error),
                                             free < 0 ? std::string() : fmt::format(" ({} free)", human_bytes(free))));
}

std::span<const std::byte> write_all(const Disk& disk, int file, std::span<const std::byte> bytes) {
  constexpr size_t kPiece = size_t{1} << 30;  // Linux writes at most 2 GiB a call
  while (!bytes.empty()) {
    const int64_t n = disk.write(file, bytes.first(std::min(bytes.size(), kPiece)));
    if (n == 0) errno = EIO;  // a disk that accepts nothing and reports no error
    if (n <= 0) break;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return bytes;
}

std::span<const std::byte> as_bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

bool path_exists(const std::filesystem::path& path) {
  struct stat facts {};
  return ::lstat(path.c_str(), &facts) == 0;
}

bool is_file_at(int file, const std::filesystem::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(file, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

std::string read_file(const std::filesystem::path& path, int64_t bytes_max) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a named pipe must not hang us
  if (file < 0) fail_input("cannot open {}: {}", path.string(), text_of(errno));
  struct Closer {
    int file;
    ~Closer() { ::close(file); }
  } closer{file};

  struct stat facts {};
  if (::fstat(file, &facts) != 0) fail_input("cannot read {}: {}", path.string(), text_of(errno));
  if (S_ISDIR(facts.st_mode)) fail_input("cannot read {}: it is a folder, not a file", path.string());
  if (!S_ISREG(facts.st_mode)) fail_input("cannot read {}: it is not a regular file", path.string());
  if (facts.st_size > bytes_max)
    fail_input("cannot read {}: it has {}, at most {} are read here", path.string(), human_bytes(facts.st_size), human_bytes(bytes_max));

  std::string text;
  text.resize(static_cast<size_t>(facts.st_size));
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t n = ::read(file, text.data() + have, text.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_input("cannot read {}: {}", path.string(), text_of(errno));
    if (n == 0) break;  // it shrank meanwhile
    have += static_cast<size_t>(n);
  }
  text.resize(have);
  return text;
}

std::string random_name() {
  uint64_t number = 0;
  CAIRN_CHECK(::getrandom(&number, sizeof number, 0) == sizeof number, "the system gives no random numbers");
  return fmt::format("{:016x}", number);
}

TemporaryFolder::TemporaryFolder() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  std::string name = (parent / "cairn-XXXXXX").string();
  if (error || !::mkdtemp(name.data()))
    throw Error(Error::Kind::disk, fmt::format("cannot make a temporary folder in {}: {}; set TMPDIR to a folder that can be written",
                                               error ? "TMPDIR" : parent.string(), error ? error.message() : text_of(errno)));
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes, const Disk& disk) {
  FileWriter writer(path, static_cast<int64_t>(bytes.size()), disk);
  writer.write(bytes);
  writer.commit();
}

void write_atomically(const std::filesystem::path& path, std::string_view text, const Disk& disk) {
  write_atomically(path, as_bytes(text), disk);
}

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && std::filesystem::is_directory(path)) return;
  const std::string why = error ? error.message() : "a file of that name is in the way";
  throw Error(Error::Kind::disk, fmt::format("cannot make folder {}: {}", path.string(), why));
}

int64_t free_bytes(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(path, error);
  while (!error && !std::filesystem::exists(at, error) && at.has_parent_path() && at != at.parent_path()) at = at.parent_path();
  return real_disk().free_bytes(at);
}

FileWriter::FileWriter(std::filesystem::path path, int64_t bytes_expected, const Disk& disk)
    : disk_(disk), path_(std::move(path)), bytes_expected_(bytes_expected) {
  // The name keeps two writers of one path apart; the last to commit wins.
  temporary_ = folder_of(path_) / fmt::format(".{}.{}.part", path_.filename().string(), random_name());
  file_ = disk_.create(temporary_);
  if (file_ < 0) fail_disk("create", path_, errno, bytes_expected_, disk_);
}

FileWriter::~FileWriter() { close_quietly(); }

void FileWriter::close_quietly() noexcept {
  if (file_ < 0) return;
  disk_.close(std::exchange(file_, -1));
  disk_.remove(temporary_);
}

void FileWriter::fail(std::string_view doing, int error, int64_t bytes_missing) {
  close_quietly();  // first, so that the reported free space does not include this file
  fail_disk(doing, path_, error, bytes_missing, disk_);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  CAIRN_CHECK(file_ >= 0, "{} is written after its commit or failure", path_.string());
  const std::span<const std::byte> rest = write_all(disk_, file_, bytes);
  if (!rest.empty()) fail("write", errno, std::max(bytes_expected_, bytes_written_ + static_cast<int64_t>(bytes.size())));
  checksum_.add(bytes);
  bytes_written_ += static_cast<int64_t>(bytes.size());
}

void FileWriter::commit() {
  CAIRN_CHECK(file_ >= 0, "{} is committed twice", path_.string());
  if (disk_.sync(file_) != 0) fail("write", errno, bytes_written_);
  if (disk_.rename(temporary_, path_) != 0) fail("replace", errno, bytes_written_);
  const int closed = disk_.close(std::exchange(file_, -1));
  if (closed != 0) fail_disk("close", path_, errno, bytes_written_, disk_);
  if (disk_.sync_folder(folder_of(path_)) != 0) fail_disk("keep", path_, errno, bytes_written_, disk_);
}

}  // namespace cairn::base
