// A line: the record, the time in Unix seconds, and the checksum of both.
#include "unlearn/tombstones.h"

#include <charconv>
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

// The lines that were acknowledged.
std::string whole_lines(const fs::path& log) {
  if (!base::path_exists(log)) return {};
  std::string text = base::read_file(log, kLogBytesMax);
  text.resize(text.rfind('\n') + 1);
  return text;
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
  std::string text = whole_lines(log);
  for (const int64_t record : records) text += tombstone_line(record, static_cast<int64_t>(base::wall_time()));
  try {
    base::write_atomically(log, text, disk);  // all of them or none: an append that a crash has torn would leave damaged lines
  } catch (const Error& error) {
    throw Error(error.kind(), error.sentence() + ". Nothing was deleted.");
  }
}

}  // namespace cairn::unlearn
