#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/checksum.h"
#include "base/files/disk.h"

namespace cairn::base {

// The whole file. Missing, a folder, unreadable, or longer than `bytes_max`: bad_input with the path and the reason.
std::string read_file(const std::filesystem::path& path, int64_t bytes_max);

// Whether the path exists in any form: a file, a folder, also a dangling or circular link (opening that reports the reason).
bool path_exists(const std::filesystem::path& path);

// Writes so that the path holds either what it held or all of `bytes`, also across a crash: temporary name beside it, write, fsync,
// rename, fsync of the folder. Throws Kind::disk with path, cause and free space, and leaves no temporary file.
void write_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes, const Disk& disk = real_disk());
void write_atomically(const std::filesystem::path& path, std::string_view text, const Disk& disk = real_disk());

// Whether an open file is still the one under this path: it was not removed, nor replaced.
bool is_file_at(int file, const std::filesystem::path& path);

// Creates a folder and its parents; no error if it is there.
void make_folder(const std::filesystem::path& path);

// Space for files at or under `path` (its nearest existing parent); -1 if the system does not say.
int64_t free_bytes(const std::filesystem::path& path);

std::span<const std::byte> as_bytes(std::string_view text);

// 16 hexadecimal digits from the system's random numbers, for names that nobody can guess.
std::string random_name();

// A new folder under the system's temporary one (TMPDIR), removed with all its contents at the end. Its name cannot be guessed, and no
// other user can open it: a fixed name in a folder that everybody can write to could be taken by somebody else's link.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A file written piece by piece that appears under its name only with commit(). Without it nothing remains.
class FileWriter {
 public:
  // `bytes_expected`: its final length, if known, for the error of a full disk. `disk` must outlive the writer.
  explicit FileWriter(std::filesystem::path path, int64_t bytes_expected = 0, const Disk& disk = real_disk());
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(as_bytes(text)); }
  void commit();  // once, last

  int64_t bytes_written() const { return bytes_written_; }
  uint64_t checksum() const { return checksum_.value(); }  // of all written so far

 private:
  [[noreturn]] void fail(std::string_view doing, int error, int64_t bytes_missing);
  void close_quietly() noexcept;

  const Disk& disk_;
  std::filesystem::path path_, temporary_;
  int64_t bytes_expected_;
  int64_t bytes_written_ = 0;
  Checksum checksum_;
  int file_ = -1;
};

}  // namespace cairn::base
