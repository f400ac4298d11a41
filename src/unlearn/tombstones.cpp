// A line: the record, the time in Unix seconds, and the checksum of both.
#include "unlearn/tombstones.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/files.h"

namespace cairn::unlearn {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLogBytesMax = int64_t{1} << 32;

std::string tombstone_line(int64_t record, int64_t time) {
  const std::string facts = fmt::format("{} {}", record, time);
  return fmt::format("{} {:016x}\n", facts, base::checksum(facts));
}

// -1: the line does not check.
int64_t record_of(std::string_view line) {
  const size_t space = line.rfind(' ');
  if (space == std::string_view::npos || line.substr(space + 1) != fmt::format("{:016x}", base::checksum(line.substr(0, space)))) return -1;
  int64_t record = -1;
  std::from_chars(line.data(), line.data() + space, record);
  return record;
}

[[noreturn]] void fail_to_log(const fs::path& log, const char* doing) {
  throw Error(Error::Kind::disk, fmt::format("{}: cannot {}: {}. Nothing was deleted.", log.string(), doing, std::strerror(errno)));
}

// Where the last whole line ends.
int64_t whole_bytes(const fs::path& log) {
  if (!fs::exists(log)) return 0;
  const std::string text = base::read_file(log, kLogBytesMax);
  return static_cast<int64_t>(text.rfind('\n') + 1);
}

}  // namespace

std::vector<int64_t> read_tombstones(const fs::path& log) {
  std::vector<int64_t> records;
  if (!base::path_exists(log)) return records;
  const std::string text = base::read_file(log, kLogBytesMax);
  int64_t number = 1;
  for (size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1, ++number) {
    const int64_t record = record_of(std::string_view(text).substr(at, end - at));
    if (record < 0) base::fail_corrupt(log.string(), fmt::format("line {} is no deletion; without it the store serves nothing", number));
    records.push_back(record);
  }
  return records;
}

void append_tombstones(const fs::path& log, std::span<const int64_t> records, const base::Disk& disk) {
  const int64_t whole = whole_bytes(log);
  std::string text;
  for (const int64_t record : records) text += tombstone_line(record, static_cast<int64_t>(base::wall_time()));
  const int file = disk.append(log);
  if (file < 0) fail_to_log(log, "be opened");
  const auto close = [&] { disk.close(file); };
  bool written = disk.resize(file, whole) == 0;  // without the rest of a line that was cut off
  for (std::string_view left = text; written && !left.empty();) {
    const int64_t count = disk.write(file, base::as_bytes(left));
    written = count > 0;
    if (written) left.remove_prefix(static_cast<size_t>(count));
  }
  if (!written || disk.sync(file) != 0) {
    const int error = errno;
    disk.resize(file, whole);
    close();
    errno = error;
    fail_to_log(log, "be written");
  }
  close();
  if (disk.sync_folder(log.parent_path()) != 0) fail_to_log(log, "be synced");
}

}  // namespace cairn::unlearn
